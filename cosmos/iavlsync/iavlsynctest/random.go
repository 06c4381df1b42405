package iavlsynctest

import (
	"encoding/binary"
	"maps"
	mathrand "math/rand/v2"
	"slices"
)

// Op is an operation on a store. It removes the key if it has no value.
type Op struct {
	Key, Value []byte
}

// Apply applies operations to a naive tree.
func (t *Tree) Apply(ops []Op) {
	for _, op := range ops {
		if op.Value == nil {
			t.Remove(op.Key)
		} else {
			t.Set(op.Key, op.Value)
		}
	}
}

// RandomOps returns operations on at most keys different keys of 1 to 4 bytes. A share of the
// operations are removals. The same key may occur several times, and values may be empty.
func RandomOps(rnd *mathrand.Rand, keys, n int, removes float64) (ops []Op) {
	for range n {
		var key [4]byte
		binary.BigEndian.PutUint32(key[:], uint32(rnd.IntN(keys)))
		op := Op{Key: key[rnd.IntN(2)*rnd.IntN(4):]}
		if rnd.Float64() >= removes {
			op.Value = binary.AppendUvarint(nil, rnd.Uint64())[rnd.IntN(2):]
			if rnd.IntN(50) == 0 {
				op.Value = []byte{}
			}
		}
		ops = append(ops, op)
	}
	return ops
}

// Network is a chain with random blocks, as naive trees. It has a large store, one that grows at
// its end and so causes rotations, one that does not change, one with a single leaf, one that is
// emptied, an empty one, and one that an upgrade adds.
type Network struct {
	Rand   *mathrand.Rand
	Height int64
	Trees  map[string]*Tree
	keys   int // maximum number of keys in the large store
	next   uint32
}

// Heights of the Network's one-time events.
const (
	upgradeHeight = 3
	emptiedHeight = 5
)

// NewNetwork returns a Network before its first block.
func NewNetwork(rnd *mathrand.Rand, keys int) *Network {
	n := &Network{Rand: rnd, Trees: map[string]*Tree{}, keys: keys}
	for _, name := range []string{"bank", "gov", "empty", "still", "single", "emptied"} {
		n.Trees[name] = &Tree{}
	}
	return n
}

// Block makes and executes the next block. The result has an entry for each store, even if the
// store has no operations.
func (n *Network) Block() map[string][]Op {
	n.Height++
	rnd, block := n.Rand, map[string][]Op{}
	removes := []float64{0.05, 0.3, 0.7, 0.97}[rnd.IntN(4)]
	if n.Height < 3 {
		block["bank"] = RandomOps(rnd, n.keys, n.keys, 0.05)
		block["still"] = RandomOps(rnd, 90, 50, 0)
	}
	if rnd.IntN(4) > 0 { // otherwise the roots do not change
		block["bank"] = append(block["bank"], RandomOps(rnd, n.keys, rnd.IntN(1+n.keys/10), removes)...)
		for range rnd.IntN(20) {
			block["gov"] = append(block["gov"], Op{binary.BigEndian.AppendUint32(nil, n.next), []byte{byte(n.Height)}})
			n.next++
		}
		block["gov"] = append(block["gov"], RandomOps(rnd, 1+int(n.next), rnd.IntN(10), removes)...)
	}
	switch n.Height {
	case 1:
		block["single"] = []Op{{[]byte("minter"), []byte{}}}
		block["emptied"] = []Op{{[]byte("k"), []byte("v")}}
	case emptiedHeight:
		block["emptied"] = []Op{{Key: []byte("k")}}
	case upgradeHeight:
		n.Trees["upgrade"] = &Tree{}
		block["upgrade"] = RandomOps(rnd, 100, 50, 0)
	}
	if n.Height > upgradeHeight && rnd.IntN(3) == 0 {
		block["upgrade"] = RandomOps(rnd, 100, rnd.IntN(50), 0.9)
	}
	for name, tree := range n.Trees {
		if block[name] == nil {
			block[name] = []Op{}
		}
		tree.Apply(block[name])
		tree.SaveAs(n.Height)
	}
	return block
}

// State returns the state after the last block.
func (n *Network) State() State {
	s := State{}
	for name, tree := range n.Trees {
		s[name] = tree.Root
	}
	return s
}

// RandomStates returns the states of a Network at each height, from 1 to heights.
func RandomStates(rnd *mathrand.Rand, keys, heights int) (states []State) {
	n := NewNetwork(rnd, keys)
	for range heights {
		n.Block()
		states = append(states, n.State())
	}
	return states
}

// RandomState returns the last of RandomStates.
func RandomState(rnd *mathrand.Rand, keys, heights int) State {
	return RandomStates(rnd, keys, heights)[heights-1]
}

// Keys returns the names in a map, ascending.
func Keys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
