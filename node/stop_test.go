package node

import (
	"fmt"
	"path/filepath"
	"testing"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/p2p"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/internal/nodetest"
)

// leaving is a reactor that reports, for each leaving peer, whether block sync still runs.
type leaving struct {
	p2p.BaseReactor
	left chan bool
}

func (l *leaving) RemovePeer(p2p.Peer, any) {
	blocksync, _ := l.Switch.Reactor("BLOCKSYNC")
	l.left <- blocksync.IsRunning()
}

// CometBFT's block sync ends the process if a peer leaves between the check of its block and its
// use (blocksync/pool.go, PopRequest). A stopping node loses all peers.
func TestBlockSyncEndsBeforeThePeersLeave(t *testing.T) {
	t.Parallel() // it waits for blocks
	dir, first := nodetest.Home(t, nil)
	start(t, dir, log.NewNopLogger())
	full, _ := nodetest.Home(t, func(o *home.InitOptions) {
		o.GenesisFile = filepath.Join(dir, "config", "genesis.json")
		edit := o.Edit
		o.Edit = func(c *cfg.Config, a *config.App) {
			edit(c, a)
			c.P2P.PersistentPeers = fmt.Sprintf("%s@%s", first.NodeID, nodetest.Load(t, dir).CometBFT.P2P.ListenAddress[len("tcp://"):])
		}
	})
	n, err := New(t.Context(), nodetest.Load(t, full), log.NewNopLogger())
	require.NoError(t, err)
	l := &leaving{left: make(chan bool, 10)}
	l.BaseReactor = *p2p.NewBaseReactor("LEAVING", l)
	n.Comet().Switch().AddReactor("LEAVING", l)
	require.NoError(t, n.Start(t.Context()))
	nodetest.Until(t, "a peer", func() bool { return n.Comet().Switch().Peers().Size() > 0 })
	require.NoError(t, n.Stop())
	require.False(t, <-l.left)
}
