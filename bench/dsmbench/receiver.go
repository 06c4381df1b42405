package dsmbench

import (
	"fmt"
	"math"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
)

// records are the bookkeeping records, of which a validator keeps all that it has come upon. Those
// of all signers are there from the beginning: as at a validator that has run for a while.
func records() avlstar.Want { return avlstar.Want{Range: true, Key: []byte{0}, After: []byte{1}} }

// memoryBytes is what a validator's tree may take: the default of a node's memory.
const memoryBytes = 256 << 20

// retention is what a validator keeps, beside the records that app.App adds.
func retention(retain, window int) avlstar.Retention {
	return avlstar.Retention{Depth: retain, Window: window, Budget: func() int64 { return memoryBytes }}
}

// receiver is the tree of a validator that has a part of the state.
type receiver struct {
	p      *avlstar.Partial
	retain int
	upper  int // bytes of the bag that it began with
}

// newReceiver begins with the upper tree of v to depth retain, and its records.
func newReceiver(v *avlstar.Version, retain, window int) (*receiver, error) {
	r := &receiver{retain: retain}
	p, upper, err := upperTree(v, retain)
	if err != nil {
		return nil, err
	}
	if r.p, err = withRecords(p, v); err != nil {
		return nil, err
	}
	r.upper = upper
	o := retention(retain, window)
	o.Keep, o.Prefer = app.KeepRecords, app.PreferNonces
	r.p.EnableRetention(o)
	return r, nil
}

// upperTree returns the tree to a depth, and how many bytes brought it.
func upperTree(v *avlstar.Version, depth int) (p *avlstar.Partial, bytes int, err error) {
	if p, err = avlstar.NewPartial(v.Commitment()); err != nil {
		return nil, 0, err
	}
	b, err := v.Upper(depth)
	if err != nil {
		return nil, 0, err
	}
	p, err = grafted(p, b)
	return p, len(b), err
}

// withRecords adds the bookkeeping records of v.
func withRecords(p *avlstar.Partial, v *avlstar.Version) (*avlstar.Partial, error) {
	wants, held := p.Version().Lacks([]avlstar.Want{records()})
	b, err := v.Bag(wants, avlstar.Below{Depth: math.MaxInt, Held: held})
	if err != nil {
		return nil, err
	}
	return grafted(p, b)
}

// grafted grafts a bag and releases p.
func grafted(p *avlstar.Partial, encoded []byte) (*avlstar.Partial, error) {
	bag, err := avlstar.DecodeBag(encoded)
	if err != nil {
		return nil, err
	}
	next, _, err := p.Graft(bag)
	if err != nil {
		return nil, err
	}
	p.Release()
	return next, nil
}

// fetch gets what it lacks of a block from v, the full tree before it, and returns the bytes of the
// bag. Deletions may need more than that: apply fetches it.
func (r *receiver) fetch(v *avlstar.Version, wants []avlstar.Want) (bytes int, err error) {
	lacking, held := r.p.Version().Lacks(wants)
	if len(held) == 0 {
		return 0, nil
	}
	b, err := v.Bag(lacking, avlstar.Below{Depth: math.MaxInt, Held: held})
	if err != nil {
		return 0, err
	}
	r.p, err = grafted(r.p, b)
	return len(b), err
}

// apply applies a block, which ends with Shed, and returns the bytes of what else it had to fetch.
func (r *receiver) apply(v *avlstar.Version, changes []avlstar.Change) (bytes int, err error) {
	for {
		next, err := r.p.Apply(changes)
		if missing, is := asMissing(err); is {
			b, err := v.Bag(missing.Wants(changes), avlstar.Below{Depth: math.MaxInt, Held: missing.Held()})
			if err != nil {
				return bytes, err
			}
			bytes += len(b)
			if r.p, err = grafted(r.p, b); err != nil {
				return bytes, err
			}
			continue
		}
		if err != nil {
			return bytes, err
		}
		r.p.Release()
		r.p = next
		break
	}
	shed, err := r.p.Shed()
	if err != nil {
		return bytes, err
	}
	r.p.Release()
	r.p = shed
	return bytes, nil
}

// bytes is what its tree takes in memory.
func (r *receiver) bytes() uint64 { return treeBytes(r.p.Memory()) }

func treeBytes(m avlstar.MemoryStats) uint64 { return m.NodeBytes + m.LeafBytes }

// check compares it with the full tree.
func (r *receiver) check(v *avlstar.Version) error {
	if have, want := r.p.AppHash(), v.AppHash(); have != want {
		return fmt.Errorf("the tree with depth %d has the app hash %s, the full one %s", r.retain, have, want)
	}
	return nil
}
