package node

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/internal/nodetest"
)

// The table of validators in docs/reference/limits.md has the budgets of the default settings, on
// four processors, and their sum, which is what a start requires.
func TestBudgetsAreDocumented(t *testing.T) {
	b := shardedBudgets(&config.Config{CometBFT: cfg.DefaultConfig(), App: config.DefaultApp()}, 4)
	nodetest.RequireBudgets(t, b, filepath.Join("..", "docs", "reference", "limits.md"), "A validator whose state storage nodes keep")
}

// Each budget of a running node says how much of it is used. Blocks are cached, and their updates
// are kept for the storage node.
func TestBudgetsAreCounted(t *testing.T) {
	t.Parallel() // it waits for blocks
	w := newShardedNetwork(t, nil, [][]int{{0}})
	w.start(0)
	n := start(t, w.validator, log.NewNopLogger())
	before := nodetest.RequireUsed(t, n.budgets())
	client, i := nodetest.RPC(t, w.validator), 0
	nodetest.Until(t, "used memory", func() bool {
		nodetest.Put(t, client, fmt.Sprint("key-", i), strings.Repeat("x", 1000))
		i++
		used := nodetest.RequireUsed(t, n.budgets())
		return !slices.ContainsFunc([]string{"blocks", "updates"}, func(name string) bool { return used[name] <= before[name] })
	})
	used := nodetest.RequireUsed(t, n.budgets())
	require.Positive(t, used["tree"])

	_, full, _ := fastNetwork(t, 10)
	require.Zero(t, nodetest.RequireUsed(t, full.budgets())["join"])
}

// A validator whose state storage nodes keep does not start with less memory than min_memory_bytes.
func TestTooLittleMemory(t *testing.T) {
	c := &config.Config{CometBFT: cfg.DefaultConfig(), App: config.DefaultApp()}
	c.App.State.Mode, c.App.MinMemoryBytes = config.ModeSharded, 1<<60
	n := &Node{config: c}
	err := n.prepareSharded(nil, comet.Heights{}, nil)
	require.ErrorIs(t, err, config.ErrInvalid)
	require.ErrorContains(t, err, "this node needs 1099511627776 MiB of memory, but ")
}
