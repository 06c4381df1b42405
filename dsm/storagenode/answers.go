package storagenode

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/serve"
	"github.com/starling-kv/starling/transport"
)

// of returns the number of the replica whose range has a key.
func (n *Node) of(key []byte) (int, bool) {
	i := slices.IndexFunc(n.replicas, func(r *Replica) bool { return rangeOf(r.o.Range).Contains(key) })
	return i, i >= 0
}

// decodeWants returns the request and the replica that all its wants are for.
func (n *Node) decodeWants(body []byte) (dsm.Witness, *Replica, error) {
	w, err := serve.DecodeWitness(body)
	if err != nil {
		return w, nil, err
	}
	i, ok := n.of(w.Wants[0].Least())
	if !ok {
		return w, nil, fmt.Errorf("no range has key %x: %w", w.Wants[0].Key, transport.ErrGone)
	}
	r := n.replicas[i]
	for _, want := range w.Wants {
		if !inside(want, rangeOf(r.o.Range)) {
			return w, nil, serve.Refused(fmt.Errorf("wants of several ranges: key %x is not in %v", want.Key, rangeOf(r.o.Range)))
		}
	}
	return w, r, nil
}

// inside reports whether what is wanted lies in a range. The way to the key with which the next
// range begins does: the seam has it, and who takes the range over needs it.
func inside(w dsm.Want, r dsm.Range) bool {
	if len(r.After) > 0 && !w.Range && !w.Next && !w.Deleted && bytes.Equal(w.Key, r.After) {
		return true
	}
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
	return serve.Bag(p.Version(), r.o.Range, w, n.o.MaxBagBytes, false)
}

func (n *Node) weighWitness(r transport.Request) int64 { return serve.WeighWitness(r, n.o.MaxBagBytes) }

// upper answers the upper nodes that the node has: what lies outside of its ranges stays a stub.
func (n *Node) upper(body []byte) ([]byte, error) {
	u, err := serve.DecodeUpper(body)
	if err != nil {
		return nil, err
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
	return serve.Upper(joined.Version(), int(u.Depth))
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
	b, err := serve.UpperBag(p.Version(), depth)
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
