package node

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/client"
	"github.com/starling-kv/starling/dsm/client/feed"
)

// A validator names the replicas that are down, and those that are not in step.
func TestDegraded(t *testing.T) {
	replica := func(name string, connected bool, state feed.State, behind int64) client.NodeStatus {
		return client.NodeStatus{Lag: feed.Lag{Node: dsm.NodeID(name), State: state, Blocks: behind}, Address: "h:1", Connected: connected}
	}
	all := func(replicas ...client.NodeStatus) client.RangeStatus {
		return client.RangeStatus{Range: avlstar.KeyRange{First: []byte("m")}, Nodes: replicas}
	}
	a, down := replica("a", true, feed.InStep, 2), replica("b", false, feed.InStep, 9)
	require.Empty(t, degraded([]client.RangeStatus{all(a, a), all(a)}))
	require.Equal(t, `range ["m", ) has 1 of 2 replicas in step (b@h:1 is down)`, degraded([]client.RangeStatus{all(a, a), all(a, down)}))
	require.Equal(t, `range ["m", ) has 0 of 3 replicas in step (c@h:1 is 49 blocks behind, d@h:1 is lagging, 600 blocks behind, e@h:1 is unheard, 1 block behind)`,
		degraded([]client.RangeStatus{all(replica("c", true, feed.InStep, 49), replica("d", true, feed.Lagging, 600), replica("e", true, feed.Unheard, 1))}))
	require.Contains(t, degraded([]client.RangeStatus{all(down), all(down), all(down), all(down), all(down)}), "; and 2 other ranges")
}
