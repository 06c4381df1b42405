package storagenode

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/cometbft/cometbft/libs/tempfile"
	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/statesync/lightblocks"
	"github.com/starling-kv/starling/statesync/lightclient"
	"github.com/starling-kv/starling/statesync/peers"
	"github.com/starling-kv/starling/transport"
)

// trustedHeader is the newest proved header, from which the next start continues.
type trustedHeader struct {
	ChainID string    `json:"chain_id"`
	Height  int64     `json:"height"`
	Hash    string    `json:"hash"`
	Time    time.Time `json:"time"`
}

func (n *Process) trustedPath() string { return config.TrustedHeaderFile(n.config.CometBFT.DBDir()) }

// saveTrust records the newest proved header. If that fails, the next start continues from an older
// one.
func (n *Process) saveTrust() {
	p := n.headers.newestProved()
	if p.height == 0 {
		return
	}
	b, err := json.MarshalIndent(trustedHeader{n.genesis.ChainID, p.height, fmt.Sprintf("%X", p.hash), p.time}, "", "  ")
	if err == nil {
		err = tempfile.WriteFileAtomic(n.trustedPath(), b, 0o600)
	}
	if err != nil {
		n.log.Error("Cannot record the newest proved header: the next start will continue from an older one", "err", err)
	}
}

// savedTrust returns the header recorded by saveTrust; height 0: no usable one.
func (n *Process) savedTrust() (t trustedHeader) {
	b, err := os.ReadFile(n.trustedPath())
	if err != nil || json.Unmarshal(b, &t) != nil || t.ChainID != n.genesis.ChainID {
		return trustedHeader{} // another header is then trusted
	}
	return t
}

// trust returns the header to begin with: the newest one proved here, the one in the [statesync]
// section, or that of the initial height, which it requests from validators until they have it. The
// error matches config.ErrInvalid if all of these are too old.
func (n *Process) trust(ctx context.Context, addresses []transport.Address) (lightblocks.Options, error) {
	c := n.config.CometBFT.StateSync
	o := lightblocks.Options{TrustPeriod: c.TrustPeriod}
	fresh := func(at time.Time) bool { return time.Since(at) < c.TrustPeriod }
	var err error
	saved := n.savedTrust()
	switch {
	case saved.Height > c.TrustHeight && fresh(saved.Time):
		o.TrustHeight = saved.Height
		o.TrustHash, err = hex.DecodeString(saved.Hash)
	case c.TrustHeight > 0:
		o.TrustHeight = c.TrustHeight
		o.TrustHash, err = hex.DecodeString(strings.TrimSpace(c.TrustHash))
	case fresh(n.genesis.GenesisTime):
		o.TrustHeight = n.genesis.InitialHeight
		o.TrustHash, err = n.genesisHeader(ctx, addresses)
		return o, err
	default:
		last := n.genesis.GenesisTime
		if saved.Time.After(last) {
			last = saved.Time
		}
		err = fmt.Errorf("the newest header of this node is from %v, older than statesync.trust_period (%v): set a recent one from a trusted source with --statesync.trust_height and --statesync.trust_hash", last, c.TrustPeriod)
	}
	if err == nil && len(o.TrustHash) != 32 {
		err = fmt.Errorf("the trusted hash of height %d has %d bytes, not 32: correct statesync.trust_hash", o.TrustHeight, len(o.TrustHash))
	}
	return o, config.Invalid(err)
}

// genesisHeader returns the hash of the header of the initial height, once a node has one signed by
// the validators of the genesis file.
func (n *Process) genesisHeader(ctx context.Context, addresses []transport.Address) ([]byte, error) {
	state, err := genesisState(n.genesis)
	if err != nil {
		return nil, err
	}
	want := state.AppHash()
	state.Release()
	peers := peers.New(peers.Options{
		Logger: n.log.With("module", "headers"), Dialer: n.dialer, Addresses: addresses, Self: n.ID(), Skip: n.isStorageNode,
		Strict: n.config.CometBFT.P2P.AddrBookStrict,
	})
	defer peers.Close()
	set := genesisValidators(n.genesis)
	warned := time.Now()
	for {
		var errs []error
		for _, conn := range peers.Conns() {
			block, err := lightblocks.NewProvider(n.genesis.ChainID, conn).LightBlock(ctx, n.genesis.InitialHeight)
			if err == nil {
				err = signedByGenesis(block, set)
			}
			switch {
			case err != nil:
				errs = append(errs, fmt.Errorf("%s: %w", conn.Remote(), err))
			case !bytes.Equal(block.AppHash, want[:]):
				return nil, config.Invalid(fmt.Errorf("block %d has app hash %X, but the genesis file gives %s: it is not the genesis file of this network", block.Height, block.AppHash, want))
			default:
				return block.Hash(), nil
			}
		}
		if time.Since(warned) >= repeatAfter {
			warned = time.Now()
			n.log.Error("No node has sent the first header signed by the genesis validators", "height", n.genesis.InitialHeight,
				"unreachable", strings.Join(peers.Failures(), "; "), "err", errors.Join(errs...))
		}
		if err := sleep.For(ctx, idlePoll/4); err != nil {
			return nil, err
		}
	}
}

// signedByGenesis checks that a block has the validators of the genesis file, and that they signed
// it.
func signedByGenesis(block *cmttypes.LightBlock, set *cmttypes.ValidatorSet) error {
	if !bytes.Equal(block.ValidatorsHash, set.Hash()) {
		return errors.New("the header's validators are not those of the genesis file")
	}
	return lightclient.CheckCommit(block)
}

// genesisValidators returns the validators of the initial height.
func genesisValidators(doc *cmttypes.GenesisDoc) *cmttypes.ValidatorSet {
	validators := make([]*cmttypes.Validator, len(doc.Validators))
	for i, v := range doc.Validators {
		validators[i] = cmttypes.NewValidator(v.PubKey, v.Power)
	}
	return cmttypes.NewValidatorSet(validators)
}
