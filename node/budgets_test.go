package node

import (
	"path/filepath"
	"testing"

	cfg "github.com/cometbft/cometbft/config"
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

// A validator whose state storage nodes keep does not start with less memory than min_memory_bytes.
func TestTooLittleMemory(t *testing.T) {
	c := &config.Config{CometBFT: cfg.DefaultConfig(), App: config.DefaultApp()}
	c.App.State.Mode, c.App.MinMemoryBytes = config.ModeSharded, 1<<60
	n := &Node{config: c}
	err := n.prepareSharded(nil, comet.Heights{}, nil)
	require.ErrorIs(t, err, config.ErrInvalid)
	require.ErrorContains(t, err, "this node needs 1099511627776 MiB of memory, but ")
}
