package node

import (
	"fmt"
	"path/filepath"
	"testing"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/internal/nodetest"
)

// The home of a newcomer comes from one address, of an RPC server or of a transport.
func TestInitFrom(t *testing.T) {
	t.Parallel() // it waits for blocks
	first, n, _ := fastNetwork(t, 10)
	nodetest.Until(t, "a snapshot", func() bool { return n.Comet().BlockStore().Height() > 6 })
	trusted := n.Comet().BlockStore().LoadBlockMeta(2)
	for name, from := range map[string]string{"rpc": config.RPCAddress(first), "transport": n.server.Load().Addr().String()} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "newcomer")
			ports := nodetest.FreePorts(t, 2)
			o := home.NewcomerOptions{Home: dir, Moniker: "newcomer", From: from, Edit: func(c *cfg.Config, a *config.App) {
				c.RPC.ListenAddress = fmt.Sprintf("tcp://127.0.0.1:%d", ports[0])
				c.P2P.ListenAddress = fmt.Sprintf("tcp://127.0.0.1:%d", ports[1])
				c.P2P.AllowDuplicateIP, c.P2P.AddrBookStrict, c.P2P.PexReactor = true, false, false
				// The test's transport does not listen 10 above p2p.
				a.Transport.ListenAddress, a.Join.Peers = "127.0.0.1:0", n.server.Load().Addr().String()
				c.P2P.PersistentPeers = fmt.Sprintf("%s@%s", n.ID(), nodetest.Load(t, first).CometBFT.P2P.ListenAddress[len("tcp://"):])
			}}
			made, err := home.InitFrom(t.Context(), o)
			require.NoError(t, err)
			require.True(t, made.TrustsFrom)
			require.Equal(t, "test-chain", made.ChainID)
			require.Contains(t, made.Peer, n.ID()+"@127.0.0.1:")
			_, err = home.InitFrom(t.Context(), o)
			require.ErrorIs(t, err, home.ErrInitialised)
			require.ErrorContains(t, err, "starlingd start --home")

			o.Home, o.TrustHeight, o.TrustHash = filepath.Join(t.TempDir(), "other"), 2, trusted.BlockID.Hash.String()
			made, err = home.InitFrom(t.Context(), o)
			require.NoError(t, err)
			require.False(t, made.TrustsFrom)
			j := start(t, o.Home, log.NewNopLogger())
			follows(t, j, n)
			require.NoError(t, j.Stop())
		})
	}
	for want, o := range map[string]home.NewcomerOptions{
		"use --trust-height and --trust-hash": {From: config.RPCAddress(first), TrustHeight: 3},
		"64 hex digits":                       {From: config.RPCAddress(first), TrustHeight: 3, TrustHash: "xx"},
		"host:port":                           {From: "nonsense"},
		"connection refused":                  {From: "127.0.0.1:1"},
		"genesis file":                        {From: "http://127.0.0.1:1"},
		// the test's transport does not listen 10 above p2p
		"p2p.persistent_peers " + n.ID() + "@HOST:PORT": {From: n.server.Load().Addr().String()},
	} {
		o.Home = filepath.Join(t.TempDir(), "none")
		_, err := home.InitFrom(t.Context(), o)
		require.ErrorContains(t, err, want)
		require.NoDirExists(t, o.Home)
	}
}
