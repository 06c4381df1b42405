package node

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/privval"
	"github.com/stretchr/testify/require"
)

// A validator whose key is with a signer of CometBFT's protocol (priv_validator_laddr): its home holds neither the key nor what was signed, it
// makes blocks, stops, and goes on with the same signer. Without a signer it says so.
func TestRemoteSigner(t *testing.T) {
	var address string
	home, _ := testHome(t, func(o *InitOptions) {
		edit := o.Edit
		o.Edit = func(c *cfg.Config, a *AppConfig) {
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
	client := rpcOf(t, home)
	put(t, client, "signed", "elsewhere")
	height := n.Application().Height()
	_, err := LoadIdentity(load(t, home))
	require.ErrorContains(t, err, "the validator's key is with the remote signer")
	require.NoError(t, n.Stop())
	stopSigner()
	require.NoFileExists(t, filepath.Join(home, "config", "priv_validator_key.json"))
	require.NoFileExists(t, filepath.Join(home, "data", "priv_validator_state.json"))

	stopSigner = startSigner(t, address, key, state)
	defer stopSigner()
	n = start(t, home, log.NewNopLogger())
	until(t, "blocks to go on", func() bool { return n.Application().Height() > height })
	require.Equal(t, "elsewhere", get(t, client, "signed"))
}

// startSigner runs CometBFT's signer server, which dials until the node listens.
func startSigner(t *testing.T, address, key, state string) (stop func()) {
	t.Helper()
	socket := address[len("unix://"):]
	require.NoError(t, os.RemoveAll(socket)) // of the node before
	endpoint := privval.NewSignerDialerEndpoint(log.NewNopLogger(), privval.DialUnixFn(socket),
		privval.SignerDialerEndpointConnRetries(6000), privval.SignerDialerEndpointRetryWaitInterval(10*time.Millisecond))
	server := privval.NewSignerServer(endpoint, "test-chain", privval.LoadFilePV(key, state))
	require.NoError(t, server.Start())
	return func() { require.NoError(t, server.Stop()) }
}
