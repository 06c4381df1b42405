package comet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/p2p"
	"github.com/cometbft/cometbft/privval"
	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/node/config"
)

// The timeout for a response of the signer is CometBFT's (node/setup.go,
// createAndStartPrivValidatorSocketClient). When the node starts, the signer has half a minute to
// connect, because both may have been started together.
const (
	signerRetries = 50
	signerPause   = 100 * time.Millisecond
	signerTries   = 10
)

// RemoteSigner is the connection to the signer that holds the validator's key, over CometBFT's
// protocol (priv_validator_laddr). CometBFT's own implementation leaves its listener open, so a
// second CometBFT in this process, after a state sync, would find the address in use.
type RemoteSigner struct {
	client   *privval.SignerClient
	listener *privval.SignerListenerEndpoint
}

// ListenForSigner listens at priv_validator_laddr until the signer has connected and answered. When
// ctx ends, it returns at the next attempt.
func ListenForSigner(ctx context.Context, c *cfg.Config, chainID string, key *p2p.NodeKey, logger log.Logger) (*RemoteSigner, error) {
	address := c.PrivValidatorListenAddr
	if err := freeSocket(ctx, address); err != nil {
		return nil, err
	}
	listener, err := privval.NewSignerListenerFromAddr(address, key.PrivKey, logger.With("module", "signer"))
	if err != nil {
		return nil, config.AddressError("priv_validator_laddr", address, err)
	}
	client, err := privval.NewSignerClient(listener, chainID)
	if err != nil {
		return nil, fmt.Errorf("priv_validator_laddr = %q: %w", address, err)
	}
	s := &RemoteSigner{client, listener}
	for range signerTries { // each attempt waits some seconds for a connection
		if _, err = client.GetPubKey(); err == nil {
			return s, nil
		}
		if ctx.Err() != nil {
			break
		}
		logger.Info("Waiting for the remote signer", "priv_validator_laddr", address, "err", err)
	}
	return nil, errors.Join(fmt.Errorf("priv_validator_laddr = %q: no signer has answered there: %w: start it, with this node's address and chain id %q",
		address, err, chainID), s.Stop())
}

// Validator returns a validator for one CometBFT, which closes it when it stops. Closing ends calls
// that wait for the signer, and the connection, but not the listener.
func (s *RemoteSigner) Validator() cmttypes.PrivValidator {
	return privval.NewRetrySignerClient(s.client, signerRetries, signerPause)
}

// Stop closes the listener. No CometBFT may be using one of its validators.
func (s *RemoteSigner) Stop() error { return s.listener.Stop() }

// withoutSigner returns the configuration for a CometBFT to which the validator is passed.
func withoutSigner(c *cfg.Config) *cfg.Config {
	copied := *c
	copied.PrivValidatorListenAddr = ""
	return &copied
}

// freeSocket removes the unix socket of a killed node. A socket on which a process listens is kept,
// and is an error.
func freeSocket(ctx context.Context, address string) error {
	path, unix := strings.CutPrefix(address, "unix://")
	if !unix {
		return nil
	}
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().Type() != fs.ModeSocket {
		return nil // a file that is not a socket stays, and listening fails
	}
	if err != nil {
		return config.AddressError("priv_validator_laddr", address, err)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err == nil {
		return errors.Join(config.AddressError("priv_validator_laddr", address, syscall.EADDRINUSE), conn.Close())
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return config.AddressError("priv_validator_laddr", address, err)
	}
	return os.Remove(path)
}
