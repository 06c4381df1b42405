package server

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/storage"
)

// traffic counts what a replica has done since Open.
type traffic struct{ reads, changes atomic.Uint64 }

// Traffic returns the number of wants that the replica answered since Open, and of keys that blocks
// changed.
func (r *Replica) Traffic() (reads, changes uint64) {
	return r.traffic.reads.Load(), r.traffic.changes.Load()
}

// Load returns the size of the newest state, and the traffic. It reads pages that are not in memory
// at the edges of the range.
func (r *Replica) Load() (dsm.Load, error) {
	v, ok := r.latest()
	if !ok {
		return dsm.Load{}, ErrClosed
	}
	p := v.partial
	defer p.Release()
	l := dsm.Load{Range: rangeOf(r.o.Range)}
	var err error
	if l.Bytes, err = p.Version().RangeBytes(l.Range.First, l.Range.After); err != nil {
		return dsm.Load{}, err
	}
	if l.Middle, err = middle(p, l.Range, l.Bytes); err != nil {
		return dsm.Load{}, err
	}
	l.Reads, l.Changes = r.Traffic()
	return l, nil
}

// middleParts is the number of parts of a range among whose edges middle chooses.
const middleParts = 64

// middle returns the key that divides a range of a size most evenly, of those at which subtrees of
// about 1/middleParts of it begin; nil: there is none inside of the range.
func middle(p *avlstar.Partial, r avlstar.KeyRange, size uint64) ([]byte, error) {
	coarse, err := p.Prune(func(s avlstar.Subtree) bool {
		return s.Height == 0 || s.Bytes <= size/middleParts || !r.Overlaps(avlstar.KeyRange{First: s.First, After: s.After})
	})
	if err != nil {
		return nil, err
	}
	defer coarse.Release()
	var best []byte
	sum, off := uint64(0), size // distance of best from the middle
	for s := range coarse.Stubs(r.First) {
		if !r.Contains(s.First) {
			continue
		}
		if d := max(sum, size-min(sum, size)) - min(sum, size-min(sum, size)); sum > 0 && d < off {
			best, off = bytes.Clone(s.First), d
		}
		sum += s.Bytes
	}
	return best, nil
}

// loads answers dsm.MethodLoads. A replica that is being closed, or whose pages cannot be read, is
// left out.
func (n *Server) loads([]byte) ([]byte, error) {
	loads := make([]dsm.Load, 0, len(n.replicas))
	for _, r := range n.replicas {
		l, err := r.Load()
		switch {
		case err == nil:
			loads = append(loads, l)
		case !errors.Is(err, ErrClosed) && !errors.Is(damaged(err), ErrDamaged) && !errors.Is(err, storage.ErrClosed):
			return nil, fmt.Errorf("range %v: %w", rangeOf(r.o.Range), err)
		}
	}
	return dsm.EncodeLoads(loads)
}
