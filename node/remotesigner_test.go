package node

import (
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/privval"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/internal/nodetest"
)

// The key of a validator is with a signer of CometBFT's protocol (priv_validator_laddr): its home
// has neither the key nor the signing state; it makes blocks, stops, and continues with the same
// signer. Without a signer it reports that.
func TestRemoteSigner(t *testing.T) {
	var address string
	home, _ := nodetest.Home(t, func(o *home.InitOptions) {
		edit := o.Edit
		o.Edit = func(c *cfg.Config, a *config.App) {
			edit(c, a)
			address = "unix://" + filepath.Join(t.TempDir(), "signer.sock")
			c.PrivValidatorListenAddr = address
		}
	})
	vault := t.TempDir()
	key, state := filepath.Join(vault, "key.json"), filepath.Join(vault, "state.json")
	require.NoError(t, os.Rename(filepath.Join(home, "config", "priv_validator_key.json"), key))
	require.NoError(t, os.Rename(filepath.Join(home, "data", "priv_validator_state.json"), state))

	stopSigner := startSigner(t, address, key, state)
	n := start(t, home, log.NewNopLogger())
	client := nodetest.RPC(t, home)
	nodetest.Put(t, client, "signed", "elsewhere")
	height := n.Application().Height()
	_, err := config.LoadIdentity(nodetest.Load(t, home))
	require.ErrorContains(t, err, "the remote signer holds the validator's key")
	_, err = New(t.Context(), nodetest.Load(t, home), log.NewNopLogger())
	require.Error(t, err, "the home, and the signer's socket, have a node already")
	require.NoError(t, n.Stop())
	stopSigner()
	require.NoFileExists(t, filepath.Join(home, "config", "priv_validator_key.json"))
	require.NoFileExists(t, filepath.Join(home, "data", "priv_validator_state.json"))

	defer startSigner(t, address, key, state)()
	n = start(t, home, log.NewNopLogger())
	nodetest.Until(t, "blocks to go on", func() bool { return n.Application().Height() > height })
	require.Equal(t, "elsewhere", nodetest.Get(t, client, "signed"))
}

// startSigner runs CometBFT's signer server, which dials until a node listens. It does not dial
// again when the node has closed the connection (privval/signer_endpoint.go, ReadMessage), and
// after Stop it continues to dial, and would take a connection without answering.
func startSigner(t *testing.T, address, key, state string) (stop func()) {
	t.Helper()
	var stopped atomic.Bool
	dial := privval.DialUnixFn(address[len("unix://"):])
	endpoint := privval.NewSignerDialerEndpoint(log.NewNopLogger(), func() (net.Conn, error) {
		if stopped.Load() {
			return nil, net.ErrClosed
		}
		return dial()
	}, privval.SignerDialerEndpointConnRetries(6000), privval.SignerDialerEndpointRetryWaitInterval(10*time.Millisecond))
	server := privval.NewSignerServer(endpoint, "test-chain", privval.LoadFilePV(key, state))
	require.NoError(t, server.Start())
	return func() {
		stopped.Store(true)
		require.NoError(t, server.Stop())
	}
}
