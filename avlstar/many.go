package avlstar

import (
	"bytes"
	"math/bits"
	"runtime"
)

// manyWalks is the number of walks that proceed at the same time: about as many reads as a core's
// memory system can have in flight.
const manyWalks = 16

// ViewMany sets each values[i] to the value of keys[i], as View returns it; nil if that key is
// absent. The walks to the keys proceed side by side, so that their waits for memory overlap:
//
//	key 0    root ─► n ……… ─► n ─► leaf
//	key 1    root ── ─► n ……… ─► n ─► leaf
//	key 2    root ── ── ─► n ……… ─► n ─► leaf
//
// If a page cannot be read, the error is that of View for the first such key, and values are
// undefined. values must be at least as long as keys.
func (v *Version) ViewMany(values, keys [][]byte) error {
	v.inUse()
	defer runtime.KeepAlive(v)
	values = values[:len(keys)]
	for len(keys) > 0 {
		n := min(manyWalks, len(keys))
		if err := v.viewGroup(values[:n], keys[:n]); err != nil {
			return err
		}
		values, keys = values[n:], keys[n:]
	}
	return nil
}

// Warm brings the paths to keys into the processor's cache, side by side as ViewMany does, for
// reads that follow soon. It reads no page.
func (v *Version) Warm(keys [][]byte) {
	v.inUse()
	defer runtime.KeepAlive(v)
	for len(keys) > 0 {
		n := min(manyWalks, len(keys))
		v.leafGroup(keys[:n])
		keys = keys[n:]
	}
}

// viewGroup is ViewMany for at most manyWalks keys.
func (v *Version) viewGroup(values, keys [][]byte) error {
	at := v.leafGroup(keys)
	for i, n := range at[:len(keys)] {
		values[i] = nil
		if n == 0 {
			value, _, err := v.viewPage(keys[i], nil)
			if err != nil {
				return err
			}
			values[i] = value
			continue
		}
		if key, value := v.leaf(n); bytes.Equal(key, keys[i]) {
			values[i] = value[:len(value):len(value)]
		}
	}
	return nil
}

// leafGroup is walkGroup, but uses the index if there is one.
func (v *Version) leafGroup(keys [][]byte) (at [manyWalks]ref) {
	if v.index == nil {
		return v.walkGroup(keys)
	}
	return v.index.leafGroup(v, keys)
}

// walkGroup returns the leaf on the path to each of at most manyWalks keys; 0 if a stub is there,
// or if the tree is empty.
func (v *Version) walkGroup(keys [][]byte) (at [manyWalks]ref) {
	var prefix [manyWalks]uint64
	for i, key := range keys {
		at[i], prefix[i] = v.root, prefixOf(key)
	}
	for going := true; going; {
		going = false
		for i := range keys {
			n := at[i]
			if !n.isInner() {
				continue
			}
			l := v.link(n)
			_, below := bits.Sub64(prefix[i], l.prefix, 0)
			if prefix[i] == l.prefix && string(keys[i]) < string(v.keyOf(n)) {
				below = 1
			}
			n = l.child[(1-below)%2]
			at[i] = n
			switch {
			case n.isInner():
				going = true
				prefetchLink(v.link(n))
			case n.isLeaf():
				prefetchRecord(&v.record(n)[0])
			}
		}
	}
	return at
}
