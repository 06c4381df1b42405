package storagenode

import (
	"path/filepath"
	"testing"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/transport"
)

// The table of storage nodes in docs/reference/limits.md has the budgets of the default settings,
// with one range on four processors, and their sum, which is what a start requires.
func TestBudgetsAreDocumented(t *testing.T) {
	b := budgetsOf(config.DefaultApp(), 1, 4, statesync.MinKept)
	nodetest.RequireBudgets(t, b, filepath.Join("..", "..", "docs", "reference", "limits.md"), "A storage node")
}

// Each budget of a running storage node says how much of it is used. Blocks, and the updates that
// wait, take memory.
func TestBudgetsAreCounted(t *testing.T) {
	t.Parallel() // it waits for blocks
	c := newChain(t, twoRanges()...)
	n := c.start(c.replicaHome(), log.NewNopLogger(), fromGenesis)
	c.put(0, 20)
	v := c.dial(n)
	v.feedAll("the blocks")
	used := nodetest.RequireUsed(t, n.budgets())
	for _, name := range []string{"pages", "ranges", "heights"} {
		require.Positive(t, used[name], name)
	}
	const large = 500_000 // more than all updates of the chain
	require.Less(t, used["strangers_updates"], int64(large))
	p := dsm.UpdatePart{Height: n.Claims()[0].Needs + 10, Range: n.Claims()[0].Range, Total: 2 * large, Part: make([]byte, large)}
	_, err := v.conn.Call(t.Context(), transport.Call{Method: dsm.MethodUpdate, Body: p.Encode(), Max: dsm.UpdateAnswerBytes})
	require.NoError(t, err)
	require.GreaterOrEqual(t, nodetest.RequireUsed(t, n.budgets())["strangers_updates"], int64(large))
}

// A storage node does not start with less memory than min_memory_bytes.
func TestTooLittleMemory(t *testing.T) {
	conf := nodetest.Load(t, newChain(t, twoRanges()...).replicaHome())
	conf.App.MinMemoryBytes = 1 << 60
	_, err := New(t.Context(), Options{Config: conf, Logger: log.NewNopLogger()})
	require.ErrorIs(t, err, config.ErrInvalid)
	require.ErrorContains(t, err, "this node needs 1099511627776 MiB of memory, but ")
}
