package storagenode

import (
	"path/filepath"
	"testing"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/statesync"
)

// The table of storage nodes in docs/reference/limits.md has the budgets of the default settings,
// with one range on four processors, and their sum, which is what a start requires.
func TestBudgetsAreDocumented(t *testing.T) {
	b := budgetsOf(config.DefaultApp(), 1, 4, statesync.MinKept)
	nodetest.RequireBudgets(t, b, filepath.Join("..", "..", "docs", "reference", "limits.md"), "A storage node")
}

// A storage node does not start with less memory than min_memory_bytes.
func TestTooLittleMemory(t *testing.T) {
	conf := nodetest.Load(t, newChain(t, twoRanges()...).replicaHome())
	conf.App.MinMemoryBytes = 1 << 60
	_, err := New(t.Context(), Options{Config: conf, Logger: log.NewNopLogger()})
	require.ErrorIs(t, err, config.ErrInvalid)
	require.ErrorContains(t, err, "this node needs 1099511627776 MiB of memory, but ")
}
