package nodedb

import (
	"maps"
	"slices"

	"github.com/starling-kv/starling/cosmos/iavlsync"
)

// nonce returns the nonce of a node. It depends only on the node's place, so that chunks can be
// written in any order and concurrently: leaf i of a store has the nonce 2 + 2i, the inner node
// before it 1 + 2i, and the root 1. Stock IAVL numbers the nodes of a version in a different order,
// but only requires that keys are unique.
func (s *installing) nonce(place, leaves int64) uint32 {
	if leaves == s.leaves {
		return rootNonce
	}
	return uint32(place + 2)
}

func (s *installing) key(kind byte, rest []byte) []byte {
	return append(append(append(make([]byte, 0, len(s.prefix)+1+len(rest)), s.prefix...), kind), rest...)
}

// recorder writes the records of nodes. fn appends the record.
type recorder interface {
	record(store int, version int64, nonce uint32, fn func(b []byte) []byte) error
}

// subtree records the nodes of a subtree of store i. first is the number of its first leaf.
func (in *placing) subtree(r recorder, i int, first int64, c *iavlsync.Chunk) (*Placed, error) {
	s := &in.stores[i]
	at := func(p iavlsync.Place) (version int64, nonce uint32) {
		part, inner := p.Part()
		size := int64(1)
		if version = c.Leaves[part].Version; inner {
			version, size = c.Inner[part].Version, c.Inner[part].Size
		}
		return version, s.nonce(int64(p)+2*first, size)
	}
	var n iavlsync.Node
	var left, right [nodeKeyBytes]byte
	add := func(b []byte) []byte { return AppendNode(b, &n) }
	for _, p := range byVersion(c) {
		part, inner := p.Part()
		leaf := &c.Leaves[part]
		n = iavlsync.Node{Size: 1, Key: leaf.Key, Value: leaf.Value}
		if inner {
			above := &c.Inner[part]
			n = iavlsync.Node{Height: above.Height, Size: above.Size, Hash: above.Hash, Key: leaf.Key}
			version, nonce := at(above.Left)
			n.Left = appendNodeKey(left[:0], version, nonce)
			version, nonce = at(above.Right)
			n.Right = appendNodeKey(right[:0], version, nonce)
		}
		version, nonce := at(p)
		if err := r.record(i, version, nonce, add); err != nil {
			return nil, err
		}
	}
	version, _ := at(c.Root)
	return &Placed{first, int64(len(c.Leaves)), version, int64(c.Root) + 2*first, slices.Clone(c.Leaves[0].Key)}, nil
}

// inner records the inner node above two subtrees of store i.
func (in *placing) inner(r recorder, i int, n *iavlsync.Inner, left, right *Placed) (*Placed, error) {
	s := &in.stores[i]
	p := &Placed{left.first, n.Size, n.Version, 2*right.first - 1, left.key}
	node := iavlsync.Node{Height: n.Height, Size: n.Size, Hash: n.Hash, Key: right.key,
		Left:  nodeKey(left.version, s.nonce(left.place, left.leaves)),
		Right: nodeKey(right.version, s.nonce(right.place, right.leaves))}
	return p, r.record(i, n.Version, s.nonce(p.place, n.Size), func(b []byte) []byte { return AppendNode(b, &node) })
}

// upperTree records the nodes above the chunks of store i, and returns the version of the store's
// root, or H for an empty store, which has no root.
func (in *placing) upperTree(r recorder, i int, chunks []*Placed) (version int64, err error) {
	u := in.upper[i]
	if in.stores[i].leaves == 0 {
		return in.m.Height, nil
	}
	placed := func(p iavlsync.Place) *Placed {
		part, inner := p.Part()
		chunk := chunks[in.start[i]+part]
		if inner {
			return &Placed{version: u.Inner[part].Version, place: 2*chunk.first - 1}
		}
		return chunk
	}
	for e := 1; e < len(u.Inner); e++ {
		n := &u.Inner[e]
		// The node's key is the first key of chunk e, with which its right subtree begins.
		right := *placed(n.Right)
		right.first, right.key = u.First[e], chunks[in.start[i]+e].key
		if _, err := in.inner(r, i, n, placed(n.Left), &right); err != nil {
			return 0, err
		}
	}
	return placed(u.Root).version, nil
}

// reference returns the record for the place of version H's root if the root itself is elsewhere or
// the store is empty; otherwise nil.
func (in *placing) reference(i int, version int64) []byte {
	switch {
	case in.stores[i].leaves == 0:
		return []byte{}
	case version < in.m.Height:
		return append([]byte{kindNode}, nodeKey(version, rootNonce)...)
	}
	return nil
}

// byVersion returns the places of a chunk's nodes in the order of their keys (except the root).
// Nonces ascend with places, so only the few versions are sorted, not the nodes.
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
