package node

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
)

// The signer's answer is waited for as CometBFT does (node/setup.go, createAndStartPrivValidatorSocketClient); a signer that is not there when
// the node starts has half a minute, since both may have been started together.
const (
	signerRetries = 50
	signerPause   = 100 * time.Millisecond
	signerTries   = 10
)

// remoteSigner is the connection to the signer that holds the validator's key, over CometBFT's protocol (priv_validator_laddr). CometBFT's own
// cannot be ended: it leaves its listener behind, so that a second CometBFT in this process, after a state sync, finds the address taken.
type remoteSigner struct {
	client   *privval.SignerClient
	listener *privval.SignerListenerEndpoint
}

// listenForSigner waits for the signer that priv_validator_laddr names.
func listenForSigner(ctx context.Context, c *cfg.Config, chainID string, key *p2p.NodeKey, logger log.Logger) (*remoteSigner, error) {
	address := c.PrivValidatorListenAddr
	if err := freeSocket(ctx, address); err != nil {
		return nil, err
	}
	listener, err := privval.NewSignerListenerFromAddr(address, key.PrivKey, logger.With("module", "signer"))
	if err != nil {
		return nil, addressError("priv_validator_laddr", address, err)
	}
	client, err := privval.NewSignerClient(listener, chainID)
	if err != nil {
		return nil, fmt.Errorf("priv_validator_laddr = %q: %w", address, err)
	}
	s := &remoteSigner{client, listener}
	for range signerTries { // each waits some seconds for a connection
		if _, err = client.GetPubKey(); err == nil {
			return s, nil
		}
		if ctx.Err() != nil {
			break
		}
		logger.Info("Waiting for the remote signer", "priv_validator_laddr", address, "err", err)
	}
	return nil, errors.Join(fmt.Errorf("priv_validator_laddr = %q: no signer has answered there: %w: start it, with this node's address and chain id %q",
		address, err, chainID), s.stop())
}

// validator is for one CometBFT, which closes it when it stops: that ends what waits for the signer, and the connection, but not the listener.
func (s *remoteSigner) validator() cmttypes.PrivValidator {
	return privval.NewRetrySignerClient(s.client, signerRetries, signerPause)
}

// stop ends it, once no CometBFT has its validator.
func (s *remoteSigner) stop() error { return s.listener.Stop() }

// withoutSigner is the configuration for a CometBFT that is handed its validator.
func withoutSigner(c *cfg.Config) *cfg.Config {
	copied := *c
	copied.PrivValidatorListenAddr = ""
	return &copied
}

// freeSocket removes the unix socket on which a node that was killed waited for its signer. One on which somebody listens stays.
func freeSocket(ctx context.Context, address string) error {
	path, unix := strings.CutPrefix(address, "unix://")
	if !unix {
		return nil
	}
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().Type() != fs.ModeSocket {
		return nil // what is no socket stays: listening says so
	}
	if err != nil {
		return addressError("priv_validator_laddr", address, err)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err == nil {
		return errors.Join(addressError("priv_validator_laddr", address, syscall.EADDRINUSE), conn.Close())
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return addressError("priv_validator_laddr", address, err)
	}
	return os.Remove(path)
}
