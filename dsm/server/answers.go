package server

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm/server/witness"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/transport"
)

// serving returns the replicas that have wants at a height, in the order of their ranges, and what
// each contributes. Several may have a want if ranges overlap, and the path to the key with which
// the next range begins; one that has earlier wants, or else the first one, answers it. The caller
// releases the versions, also after an error.
func (n *Server) serving(height int64, wants []avlstar.Want) (by []*Replica, parts []witness.Part, err error) {
	next := 0 // the replicas before it have none of the wants that are left
	from := 0 // the first want of the last replica
	for i, w := range wants {
		last := len(parts) - 1
		if last >= 0 && inside(w, parts[last].Range) {
			parts[last].Wants = wants[from : i+1]
			continue
		}
		across := last >= 0 && parts[last].Range.Contains(w.Least())
		found, behind := false, false
		for ; !found && next < len(n.replicas); next++ {
			r := n.replicas[next]
			keys := rangeOf(r.o.Range)
			if bytes.Compare(w.Least(), keys.First) < 0 {
				break // it may have later wants
			}
			if !inside(w, keys) {
				across = across || keys.Contains(w.Least())
				continue
			}
			if p, ok := r.At(height); ok {
				share := avlstar.Share{Version: p.Version(), Range: keys}
				by, parts = append(by, r), append(parts, witness.Part{Share: share, Wants: wants[i : i+1]})
				from, found = i, true
			} else {
				behind = true
			}
		}
		switch {
		case found:
		case across && !behind:
			return by, parts, witness.Refused(fmt.Errorf("a want across the end of a range, from key %x on", w.Key))
		default:
			return by, parts, fmt.Errorf("no range has key %x at height %d: %w", w.Key, height, transport.ErrGone)
		}
	}
	return by, parts, nil
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
	replicas, parts, err := n.serving(w.Height, w.Wants)
	defer func() {
		for _, p := range parts {
			p.Version.Release()
		}
	}()
	if err != nil {
		return nil, err
	}
	b, err := witness.MultiproofOf(parts, w, n.o.MaxMultiproofBytes, false)
	if err != nil && len(parts) > 1 && !errors.Is(err, transport.ErrRefused) {
		// One of the ranges is perhaps damaged: the requester then asks for each alone.
		err = fmt.Errorf("%w: %w", transport.ErrGone, err)
	}
	if err == nil && len(b) > 0 {
		for i, r := range replicas {
			r.traffic.reads.Add(uint64(len(parts[i].Wants)))
		}
	}
	return b, unlessTrimmed(err)
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
	var shares []avlstar.Share
	defer func() {
		for _, s := range shares {
			s.Version.Release()
		}
	}()
	for _, r := range n.replicas {
		if p, ok := r.At(u.Height); ok {
			shares = append(shares, avlstar.Share{Version: p.Version(), Range: rangeOf(r.o.Range)})
		}
	}
	if len(shares) == 0 {
		return nil, transport.ErrGone
	}
	b, err := witness.UpperOf(shares, int(u.Depth))
	return b, unlessTrimmed(err)
}
