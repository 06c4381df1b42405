package storagenode

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/dsm"
)

// A want goes to the range to which dsm.Ranges routes it, also where a range begins just above the
// key whose next key is wanted. The way to its end may be asked of a range, too.
func TestInsideIsWhereRouteSends(t *testing.T) {
	edges := []string{"", "a", "a\x00", "a\x00\x00", "b"}
	shards := make([]dsm.Shard, len(edges))
	for i, first := range edges {
		shards[i] = dsm.Shard{Range: dsm.Range{First: []byte(first)}, Replicas: []dsm.Node{"n"}}
		if i+1 < len(edges) {
			shards[i].Range.After = []byte(edges[i+1])
		}
	}
	ranges, err := dsm.NewRanges(shards)
	require.NoError(t, err)
	for _, key := range []string{"0", "a", "a\x00", "a\x00\x00", "a\x01", "b", "c"} {
		for _, next := range []bool{false, true} {
			w := dsm.Want{Key: []byte(key), Next: next}
			parts, err := ranges.Route([]dsm.Want{w})
			require.NoError(t, err)
			for _, p := range parts {
				for i := range shards {
					edge := !next && string(shards[i].Range.After) == key // the seam has it
					require.Equal(t, i == p.Shard || edge, inside(w, shards[i].Range), "%q, next %t, range %d", key, next, i)
				}
			}
		}
	}
}
