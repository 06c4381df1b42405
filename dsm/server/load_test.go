package server_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/internal/seeds"
)

// A node reports the exact size of each range, a key that divides it, and what it has done.
func TestLoads(t *testing.T) {
	rng := seeds.Rand(t)
	n, _, replicas := newNetwork(t, rng, 3, 1, 4)
	for height := int64(1); height <= 4; height++ {
		n.proved.Store(height)
		n.update(t, height, 1<<20)
		for _, r := range replicas {
			_, err := r.Advance()
			require.NoError(t, err)
		}
	}
	v := n.at(4)
	height, _ := replicas[0].Newest()
	require.EqualValues(t, 4, height)
	request, err := dsm.Witness{Height: 4, MaxBytes: 1 << 20, Wants: []avlstar.Want{{Key: chainKey(1)}, {Key: chainKey(2)}}}.Encode()
	require.NoError(t, err)
	wants := map[int]uint64{}
	for _, w := range []int{1, 2} {
		wants[n.ranges.Index(chainKey(w))]++
	}
	if len(wants) == 1 { // otherwise, no range has both
		_, err = n.call(nodeName(0), "validator", dsm.MethodWitness, request)
		require.NoError(t, err)
	}
	b, err := n.call(nodeName(0), "operator", dsm.MethodLoads, nil)
	require.NoError(t, err)
	loads, err := dsm.DecodeLoads(b)
	require.NoError(t, err)
	require.Len(t, loads, 3)
	for i, l := range loads {
		r := dsmRange(n.chain.ranges[i])
		require.True(t, l.Range.Equal(r))
		var size, below uint64
		leaves, changes := 0, uint64(0)
		for leaf, err := range v.Leaves() {
			require.NoError(t, err)
			if !r.Contains(leaf.Key) {
				continue
			}
			length := uint64(len(record.Append(nil, leaf)))
			if size += length; string(leaf.Key) < string(l.Middle) {
				below += length
			}
			leaves++
		}
		for _, block := range n.blocks[:4] {
			u, err := avlstar.DecodeUpdate(block.updates[i]) // without changes that change nothing
			require.NoError(t, err)
			changes += uint64(len(u.Changes))
		}
		require.Equal(t, size, l.Bytes)
		require.Equal(t, changes, l.Changes)
		if len(wants) == 1 {
			require.Equal(t, wants[i], l.Reads)
		}
		if leaves >= 100 {
			require.InDelta(t, 0.5, float64(below)/float64(size), 0.1, "%d keys", leaves)
		}
	}
}
