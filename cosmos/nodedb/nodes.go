package nodedb

import (
	"maps"
	"slices"

	"github.com/starling-kv/starling/cosmos/iavlsync"
)

// The key of a node follows from its place alone, so that chunks can be written in any order, at
// the same time: leaf i of a store has the nonce 2 + 2i, the inner node before it 1 + 2i, and the
// root 1. Stock IAVL numbers the nodes of a version in another order; it only asks that no two
// have the same key.
func (s *installing) nonce(place, leaves int64) uint32 {
	if leaves == s.leaves {
		return rootNonce
	}
	return uint32(place + 2)
}

func (s *installing) key(kind byte, rest []byte) []byte {
	return append(append(append(make([]byte, 0, len(s.prefix)+1+len(rest)), s.prefix...), kind), rest...)
}

// arena lends parts of a growing array: batches keep what they are given.
type arena struct{ b []byte }

func (a *arena) add(fn func(b []byte) []byte) []byte {
	if cap(a.b)-len(a.b) < 1024 {
		a.b = make([]byte, 0, 256<<10)
	}
	start := len(a.b)
	a.b = fn(a.b)
	return a.b[start:len(a.b):len(a.b)]
}

// subtree writes the nodes of a chunk of store i, whose leaves begin at first, and its part of the
// fast index.
func (in *Installer) subtree(b Batch, i int, first int64, c *iavlsync.Chunk) (*Placed, error) {
	s := &in.stores[i]
	var a arena
	at := func(p iavlsync.Place) (version int64, nonce uint32) {
		part, inner := p.Part()
		size := int64(1)
		if version = c.Leaves[part].Version; inner {
			version, size = c.Inner[part].Version, c.Inner[part].Size
		}
		return version, s.nonce(int64(p)+2*first, size)
	}
	for _, p := range byVersion(c) {
		part, inner := p.Part()
		leaf := &c.Leaves[part]
		n := iavlsync.Node{Size: 1, Key: leaf.Key, Value: leaf.Value}
		if inner {
			above := &c.Inner[part]
			n = iavlsync.Node{Height: above.Height, Size: above.Size, Hash: above.Hash, Key: leaf.Key,
				Left: nodeKey(at(above.Left)), Right: nodeKey(at(above.Right))}
		}
		version, nonce := at(p)
		key := a.add(func(b []byte) []byte {
			return appendNodeKey(append(append(b, s.prefix...), kindNode), version, nonce)
		})
		if err := b.Set(key, a.add(func(b []byte) []byte { return AppendNode(b, &n) })); err != nil {
			return nil, err
		}
	}
	for j := range c.Leaves {
		leaf := &c.Leaves[j]
		key := a.add(func(b []byte) []byte { return append(append(append(b, s.prefix...), kindFast), leaf.Key...) })
		record := a.add(func(b []byte) []byte { return AppendFast(b, leaf.Version, leaf.Value) })
		if err := b.Set(key, record); err != nil {
			return nil, err
		}
	}
	version, _ := at(c.Root)
	return &Placed{first, int64(len(c.Leaves)), version, int64(c.Root) + 2*first, slices.Clone(c.Leaves[0].Key)}, nil
}

// inner writes the inner node above two subtrees of store i.
func (in *Installer) inner(b Batch, i int, n *iavlsync.Inner, left, right *Placed) (*Placed, error) {
	s := &in.stores[i]
	p := &Placed{left.first, n.Size, n.Version, 2*right.first - 1, left.key}
	record := AppendNode(nil, &iavlsync.Node{Height: n.Height, Size: n.Size, Hash: n.Hash, Key: right.key,
		Left:  nodeKey(left.version, s.nonce(left.place, left.leaves)),
		Right: nodeKey(right.version, s.nonce(right.place, right.leaves))})
	return p, b.Set(s.key(kindNode, nodeKey(n.Version, s.nonce(p.place, n.Size))), record)
}

// byVersion returns the places of a chunk's nodes in the order of their keys (but for the root's).
// Nonces ascend with places: so the nodes need no sort, only the versions, which are few.
func byVersion(c *iavlsync.Chunk) []iavlsync.Place {
	version := func(p iavlsync.Place) int64 {
		part, inner := p.Part()
		if inner {
			return c.Inner[part].Version
		}
		return c.Leaves[part].Version
	}
	next := map[int64]int{}
	n := iavlsync.Place(2*len(c.Leaves) - 1)
	for p := range n {
		next[version(p)]++
	}
	start := 0
	for _, v := range slices.Sorted(maps.Keys(next)) {
		count := next[v]
		next[v] = start
		start += count
	}
	places := make([]iavlsync.Place, n)
	for p := range n {
		v := version(p)
		places[next[v]] = p
		next[v]++
	}
	return places
}
