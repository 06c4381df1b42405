package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/dustin/go-humanize"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
)

// The table of validators in docs/reference/limits.md has the budgets of the default settings, on
// four processors, and their sum, which is what a start requires.
func TestBudgetsAreDocumented(t *testing.T) {
	b := shardedBudgets(&config.Config{CometBFT: cfg.DefaultConfig(), App: config.DefaultApp()}, 4)
	text, err := os.ReadFile(filepath.Join("..", "docs", "reference", "limits.md"))
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n### A validator whose state storage nodes keep\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n#")
	var got [][2]string
	for line := range strings.Lines(section) {
		if cells := strings.Split(line, " | "); strings.HasPrefix(line, "| `") {
			got = append(got, [2]string{strings.Trim(cells[0], "| `"), cells[1]})
		}
	}
	mib := func(bytes int64) string { return humanize.Comma((bytes+1<<20-1)>>20) + " MiB" }
	var want [][2]string
	for _, one := range b {
		want = append(want, [2]string{one.Name, mib(one.Bytes)})
	}
	require.Equal(t, append(want, [2]string{"min_memory_bytes", mib(b.Memory())}), got)
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
