package server

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
)

// A want belongs to the range that dsm.Ranges routes it to, even if a range begins just above a key
// whose next key is wanted. A range also serves the path to its end key.
func TestInsideIsWhereRouteSends(t *testing.T) {
	edges := []string{"", "a", "a\x00", "a\x00\x00", "b"}
	shards := make([]dsm.Placement, len(edges))
	for i, first := range edges {
		shards[i] = dsm.Placement{Range: avlstar.KeyRange{First: []byte(first)}, Replicas: []dsm.NodeID{"n"}}
		if i+1 < len(edges) {
			shards[i].Range.After = []byte(edges[i+1])
		}
	}
	ranges, err := dsm.NewRanges(shards)
	require.NoError(t, err)
	for _, key := range []string{"0", "a", "a\x00", "a\x00\x00", "a\x01", "b", "c"} {
		for _, next := range []bool{false, true} {
			w := avlstar.Want{Key: []byte(key), Next: next}
			parts, err := ranges.Route([]avlstar.Want{w})
			require.NoError(t, err)
			for _, p := range parts {
				for i := range shards {
					edge := !next && string(shards[i].Range.After) == key // in the boundary proof
					require.Equal(t, i == p.Shard || edge, inside(w, shards[i].Range), "%q, next %t, range %d", key, next, i)
				}
			}
		}
	}
}
