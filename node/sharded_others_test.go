package node

import (
	"fmt"
	"os"
	"strings"
	"testing"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/internal/nodetest"
)

// If no storage node runs, a validator executes blocks on witnesses of another node, and answers
// queries.
func TestWitnessesOfOtherNodes(t *testing.T) {
	t.Parallel() // it waits for blocks
	w := newShardedNetwork(t, []string{"key-10"}, [][]int{{0}, {0}})
	w.start(0)
	n := start(t, w.validator, log.NewNopLogger())
	client := nodetest.RPC(t, w.validator)
	for i := 1; i < 20; i += 4 {
		nodetest.Put(t, client, fmt.Sprintf("key-%02d", i), fmt.Sprint("value ", i))
	}
	address := fmt.Sprint("127.0.0.1:", nodetest.FreePorts(t, 1)[0])
	full, made := nodetest.Home(t, func(o *home.InitOptions) {
		o.GenesisFile = w.genesis()
		edit := o.Edit
		o.Edit = func(c *cfg.Config, a *config.App) {
			edit(c, a)
			a.Transport.ListenAddress = address
			c.P2P.PersistentPeers = fmt.Sprintf("%s@%s", w.id, nodetest.Load(t, w.validator).CometBFT.P2P.ListenAddress[len("tcp://"):])
		}
	})
	local := start(t, full, log.NewNopLogger())

	// After a restart the validator has little more than the upper tree.
	require.NoError(t, n.Stop())
	file := config.AppFile(w.validator)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	edited := strings.Replace(string(text), "\npeers = \"\"", fmt.Sprintf("\npeers = \"%s@%s\"", made.NodeID, address), 1)
	require.NotEqual(t, string(text), edited)
	nodetest.WriteFile(t, file, edited)
	n = start(t, w.validator, log.NewNopLogger())
	client = nodetest.RPC(t, w.validator)
	nodetest.Until(t, "the other node is connected", func() bool { return len(n.others.Conns()) > 0 })
	w.stop(0)
	height := n.Application().Height()
	nodetest.Until(t, "both make blocks", func() bool {
		return n.Application().Height() > height && local.Application().Height() >= height
	})
	for i := 1; i < 20; i += 4 {
		require.Equal(t, fmt.Sprint("value ", i), nodetest.Get(t, client, fmt.Sprintf("key-%02d", i)))
	}
	nodetest.Put(t, client, "key-05", "changed")
	nodetest.Put(t, client, "key-15", "changed")
	require.Equal(t, "changed", nodetest.Get(t, client, "key-05"))
	nodetest.SameHashes(t, local.Application(), local.Comet)
	require.NoError(t, n.Stop())
	require.NoError(t, local.Stop())
}
