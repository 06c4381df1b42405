package ask

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
)

// The machine remembers a bounded number of helpers: anybody can connect under many names.
func TestHelpersAreForgotten(t *testing.T) {
	ranges, err := dsm.NewRanges([]dsm.Placement{{Replicas: []dsm.NodeID{"a"}}})
	require.NoError(t, err)
	policy := DefaultPolicy()
	m, now := New(ranges, policy), policy.MaxAvoid
	parts := []dsm.Part{{Wants: []avlstar.Want{{Key: []byte("k")}}}}
	for i := range 1000 {
		helper := dsm.NodeID(fmt.Sprint("helper ", i))
		m.Step(now, Fetch{ID: FetchID(i + 1), Height: 7, Parts: parts, Helpers: []dsm.NodeID{helper}})
		now += policy.Help
		m.Step(now, Tick{})
		require.Contains(t, m.nodes, helper)
		m.Step(now, Drop{ID: FetchID(i + 1)})
		require.LessOrEqual(t, m.helpers, 257)
		require.Len(t, m.nodes, 1+m.helpers)
	}
}
