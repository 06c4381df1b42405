package storagenode

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/transport"
)

// of returns the number of the replica whose range has a key.
func (n *Node) of(key []byte) (int, bool) {
	i := slices.IndexFunc(n.replicas, func(r *Replica) bool { return rangeOf(r.o.Range).Contains(key) })
	return i, i >= 0
}

// decodeWants returns the request and the replica that all its wants are for.
func (n *Node) decodeWants(body []byte) (dsm.Witness, *Replica, error) {
	w, err := dsm.DecodeWitness(body)
	if err != nil {
		return w, nil, refused(err)
	}
	if len(w.Wants) == 0 {
		return w, nil, refused(errors.New("a witness of nothing"))
	}
	i, ok := n.of(w.Wants[0].Least())
	if !ok {
		return w, nil, fmt.Errorf("no range has key %x: %w", w.Wants[0].Key, transport.ErrGone)
	}
	r := n.replicas[i]
	for _, want := range w.Wants {
		if !inside(want, rangeOf(r.o.Range)) {
			return w, nil, refused(fmt.Errorf("wants of several ranges: key %x is not in %v", want.Key, rangeOf(r.o.Range)))
		}
	}
	return w, r, nil
}

// inside reports whether what is wanted lies in a range.
func inside(w dsm.Want, r dsm.Range) bool {
	if !r.Contains(w.Least()) {
		return false
	}
	return !w.Range || len(r.After) == 0 || w.After != nil && bytes.Compare(w.After, r.After) <= 0
}

func (n *Node) witness(body []byte) ([]byte, error) {
	w, r, err := n.decodeWants(body)
	if err != nil {
		return nil, err
	}
	p, ok := r.At(w.Height)
	if !ok {
		return nil, transport.ErrGone
	}
	defer p.Release()
	wants, err := wantsOf(p, r.o.Range, w.Wants)
	if err != nil {
		return nil, err
	}
	below := avlstar.Below{Depth: int(w.Depth), Held: make(map[avlstar.Hash]struct{}, len(w.Held)), MaxBytes: n.most(w)}
	for _, h := range w.Held {
		below.Held[h] = struct{}{}
	}
	bag, err := p.Bag(wants, below)
	switch {
	case errors.Is(err, avlstar.ErrBagTooLarge) || err == nil && len(bag) > below.MaxBytes:
		return nil, nil // no bytes: less is to be asked for at once
	case err != nil:
		return nil, err
	}
	return bag, nil
}

func (n *Node) most(w dsm.Witness) int { return int(min(int64(w.MaxBytes), int64(n.o.MaxBagBytes))) }

// wantsOf returns the wants as the tree knows them. The next key is looked for in the range; where
// there is none, the way to the key itself shows where to ask further.
func wantsOf(p *avlstar.Partial, r avlstar.KeyRange, wants []dsm.Want) ([]avlstar.Want, error) {
	all := make([]avlstar.Want, 0, len(wants))
	for _, w := range wants {
		want := avlstar.Want{Key: w.Key, Range: w.Range, After: w.After, Deleted: w.Deleted}
		if w.Next {
			if above := w.Least(); rangeOf(r).Contains(above) {
				for l, err := range p.Leaves(avlstar.KeyRange{First: above, After: r.After}) {
					if err != nil {
						return nil, err
					}
					want.Key = bytes.Clone(l.Key)
					break
				}
			}
		}
		all = append(all, want)
	}
	return all, nil
}

// weighWitness returns about how many bytes are made to answer: a want opens a way of about a
// kilobyte, a range of keys as much as the answer may have.
func (n *Node) weighWitness(r transport.Request) int64 {
	w, err := dsm.DecodeWitness(r.Body)
	if err != nil {
		return 0
	}
	if slices.ContainsFunc(w.Wants, func(w dsm.Want) bool { return w.Range }) {
		return int64(n.most(w))
	}
	return min(int64(n.most(w)), int64(len(w.Wants))<<10)
}

// maxUpperDepth limits an upper tree: 65,536 nodes are more than a validator has use for.
const maxUpperDepth = 16

// upper answers the upper nodes that the node has: what lies outside of its ranges stays a stub.
func (n *Node) upper(body []byte) ([]byte, error) {
	u, err := dsm.DecodeUpperRequest(body)
	if err != nil {
		return nil, refused(err)
	}
	if u.Depth > maxUpperDepth {
		return nil, refused(fmt.Errorf("depth %d, the limit is %d", u.Depth, maxUpperDepth))
	}
	var joined *avlstar.Partial
	for _, r := range n.replicas {
		p, ok := r.At(u.Height)
		if !ok {
			continue
		}
		joined, err = join(joined, p, int(u.Depth))
		if err != nil {
			return nil, err
		}
	}
	if joined == nil {
		return nil, transport.ErrGone
	}
	defer joined.Release()
	bag, err := joined.Upper(int(u.Depth))
	if err != nil {
		return nil, err
	}
	return dsm.Upper{Commitment: joined.Commitment().Encode(), Bag: bag}.Encode(), nil
}

// join adds the upper nodes that p, the partial tree of a range, has to those of other ranges; nil:
// there are none yet. It takes both references, and returns one.
func join(joined, p *avlstar.Partial, depth int) (*avlstar.Partial, error) {
	defer p.Release()
	if joined == nil {
		var err error
		if joined, err = avlstar.NewPartial(p.Commitment()); err != nil {
			return nil, err
		}
	}
	defer joined.Release()
	b, err := p.Upper(depth)
	if err != nil {
		return nil, err
	}
	bag, err := avlstar.DecodeBag(b)
	if err != nil {
		return nil, err
	}
	next, _, err := joined.Graft(bag)
	return next, err
}

func weighUpper(r transport.Request) int64 {
	u, err := dsm.DecodeUpperRequest(r.Body)
	if err != nil || u.Depth > maxUpperDepth {
		return 0
	}
	return 128 << u.Depth
}
