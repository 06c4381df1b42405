package server

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm/server/witness"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/transport"
)

// serving returns the replicas whose ranges contain all wants. There are several if ranges overlap,
// and for the path to the key with which the next range begins, if both ranges are here.
func (n *Server) serving(wants []avlstar.Want) ([]*Replica, error) {
	var all []*Replica
	known := false
	for _, r := range n.replicas {
		keys := rangeOf(r.o.Range)
		known = known || keys.Contains(wants[0].Least())
		if !slices.ContainsFunc(wants, func(w avlstar.Want) bool { return !inside(w, keys) }) {
			all = append(all, r)
		}
	}
	switch {
	case len(all) > 0:
		return all, nil
	case known:
		return nil, witness.Refused(fmt.Errorf("wants of several ranges, from key %x on", wants[0].Key))
	}
	return nil, fmt.Errorf("no range has key %x: %w", wants[0].Key, transport.ErrGone)
}

// inside reports whether a want lies in a range. The path to the first key of the next range does:
// the boundary proof contains it, and a node that takes over the range needs it.
func inside(w avlstar.Want, r avlstar.KeyRange) bool {
	if len(r.After) > 0 && !w.Range && !w.Next && !w.Deleted && bytes.Equal(w.Key, r.After) {
		return true
	}
	if !r.Contains(w.Least()) {
		return false
	}
	return !w.Range || len(r.After) == 0 || w.After != nil && bytes.Compare(w.After, r.After) <= 0
}

func (n *Server) witness(body []byte) ([]byte, error) {
	w, err := witness.DecodeWitness(body)
	if err != nil {
		return nil, err
	}
	replicas, err := n.serving(w.Wants)
	if err != nil {
		return nil, err
	}
	for _, r := range replicas {
		if p, ok := r.At(w.Height); ok {
			defer p.Release()
			b, err := witness.Multiproof(p.Version(), r.o.Range, w, n.o.MaxMultiproofBytes, false)
			if err == nil && len(b) > 0 {
				r.traffic.reads.Add(uint64(len(w.Wants)))
			}
			return b, unlessTrimmed(err)
		}
	}
	return nil, transport.ErrGone
}

func (n *Server) weighWitness(r transport.Request) int64 {
	return witness.WeighWitness(r, n.o.MaxMultiproofBytes)
}

// unlessTrimmed replaces the error of a height whose pages were dropped during a request: the
// replica had just stopped serving it.
func unlessTrimmed(err error) error {
	if errors.Is(err, storage.ErrNoPage) {
		return transport.ErrGone
	}
	return err
}

// upper answers with the upper nodes of this node's ranges. Everything outside them stays a stub.
func (n *Server) upper(body []byte) ([]byte, error) {
	u, err := witness.DecodeUpper(body)
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
			return nil, unlessTrimmed(err)
		}
	}
	if joined == nil {
		return nil, transport.ErrGone
	}
	defer joined.Release()
	return witness.Upper(joined.Version(), int(u.Depth))
}

// weighUpper counts the upper nodes of every replica.
func (n *Server) weighUpper(r transport.Request) int64 {
	return witness.WeighUpper(r) * int64(max(1, len(n.replicas)))
}

// join adds the upper nodes of p, the partial tree of a range, to joined, which is nil for the
// first range. It consumes both references and returns one.
func join(joined, p *avlstar.Partial, depth int) (*avlstar.Partial, error) {
	defer p.Release()
	if joined == nil {
		var err error
		if joined, err = avlstar.NewPartial(p.Commitment()); err != nil {
			return nil, err
		}
	}
	defer joined.Release()
	b, err := witness.UpperMultiproof(p.Version(), depth)
	if err != nil {
		return nil, err
	}
	multiproof, err := avlstar.DecodeMultiproof(b)
	if err != nil {
		return nil, err
	}
	next, _, err := joined.Graft(multiproof)
	return next, err
}
