package dsmbench

import (
	"fmt"
	"math"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
)

// records selects the system keys. A validator keeps every system key that it has seen; here it has
// those of all signers from the start, like a validator that has run for a while.
func records() avlstar.Want { return avlstar.Want{Range: true, Key: []byte{0}, After: []byte{1}} }

// memoryBytes is the memory limit of a validator's tree: a node's default.
const memoryBytes = 256 << 20

// retention returns what a validator keeps, in addition to the system keys that app.App adds.
func retention(retain, window int) avlstar.Retention {
	return avlstar.Retention{Depth: retain, Window: window, Budget: func() int64 { return memoryBytes }}
}

// receiver is the tree of a validator with a partial state.
type receiver struct {
	p      *avlstar.Partial
	retain int
	upper  int // bytes of the first multiproof
}

// newReceiver starts with the upper tree of v, to depth retain, and the system keys of v.
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

// upperTree returns the tree down to depth, and the bytes of the multiproof that contained it.
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

// withRecords adds the system keys of v.
func withRecords(p *avlstar.Partial, v *avlstar.Version) (*avlstar.Partial, error) {
	wants, held := p.Version().Missing([]avlstar.Want{records()})
	b, err := v.Multiproof(wants, avlstar.Below{Depth: math.MaxInt, Held: held})
	if err != nil {
		return nil, err
	}
	return grafted(p, b)
}

// grafted grafts a multiproof and releases p.
func grafted(p *avlstar.Partial, encoded []byte) (*avlstar.Partial, error) {
	multiproof, err := avlstar.DecodeMultiproof(encoded)
	if err != nil {
		return nil, err
	}
	next, _, err := p.Graft(multiproof)
	if err != nil {
		return nil, err
	}
	p.Release()
	return next, nil
}

// fetch gets the nodes that are missing for a block from v, the full tree before the block, and
// returns the bytes of the multiproof. Deletions may need more nodes, which apply fetches.
func (r *receiver) fetch(v *avlstar.Version, wants []avlstar.Want) (bytes int, err error) {
	lacking, held := r.p.Version().Missing(wants)
	if len(held) == 0 {
		return 0, nil
	}
	b, err := v.Multiproof(lacking, avlstar.Below{Depth: math.MaxInt, Held: held})
	if err != nil {
		return 0, err
	}
	r.p, err = grafted(r.p, b)
	return len(b), err
}

// apply applies a block, sheds, and returns the bytes of the multiproofs that it had to fetch in
// addition.
func (r *receiver) apply(v *avlstar.Version, changes []avlstar.Change) (bytes int, err error) {
	for {
		next, err := r.p.Apply(changes)
		if missing, is := asMissing(err); is {
			b, err := v.Multiproof(missing.Wants(changes), avlstar.Below{Depth: math.MaxInt, Held: missing.Held()})
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

// bytes returns the memory of the tree.
func (r *receiver) bytes() uint64 { return treeBytes(r.p.Memory()) }

func treeBytes(m avlstar.MemoryStats) uint64 { return m.NodeBytes + m.LeafBytes }

// check compares the app hash with that of the full tree.
func (r *receiver) check(v *avlstar.Version) error {
	if have, want := r.p.AppHash(), v.AppHash(); have != want {
		return fmt.Errorf("the tree of depth %d has the app hash %s, the full tree has %s", r.retain, have, want)
	}
	return nil
}
