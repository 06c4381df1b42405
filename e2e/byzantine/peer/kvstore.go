package peer

import (
	"context"
	"errors"
	"io"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/crypto"
	cometnode "github.com/cometbft/cometbft/node"
	"github.com/cometbft/cometbft/p2p"
	"github.com/cometbft/cometbft/privval"
	"github.com/cometbft/cometbft/proxy"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/e2e/byzantine/liar"
	"github.com/starling-kv/starling/e2e/byzantine/voter"
	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/node/config"
)

// runKVStore runs CometBFT's own node with its kvstore until ctx ends. Its signatures and attacks
// are those of Starling's node, so that a benchmark can compare how honest validators tolerate
// them.
func runKVStore(ctx context.Context, o options, set liar.Set, logs io.Writer) error {
	if mode := set.Serves(); mode != "" || set.Has(liar.Simulate) {
		return errors.New("--lie: kvstore serves no snapshots or programs: use modes of signatures and attacks")
	}
	conf, err := runner.ReadConfig(o.home)
	if err == nil {
		err = conf.ValidateBasic()
	}
	if err != nil {
		return err
	}
	logger, err := config.NewLogger(logs, conf.LogLevel, conf.LogFormat)
	if err != nil {
		return err
	}
	genesis, err := types.GenesisDocFromFile(conf.GenesisFile())
	if err != nil {
		return err
	}
	onto, err := attackOf(ctx, o, set, genesis.ChainID, conf.P2P.PersistentPeers)
	if err != nil {
		return err
	}
	onto.KVStore = true
	key, err := p2p.LoadNodeKey(conf.NodeKeyFile())
	if err != nil {
		return err
	}
	member := new(member)
	validator := fileValidator{privval.LoadFilePV(conf.PrivValidatorKeyFile(), conf.PrivValidatorStateFile())}
	n, err := cometnode.NewNodeWithContext(ctx, conf, voter.Wrap(validator, set, o.seed, member.peers, report(logger)), key,
		proxy.DefaultClientCreator(conf.ProxyApp, conf.ABCI, conf.DBDir()), cometnode.DefaultGenesisDocProviderFunc(conf),
		cfg.DefaultDBProvider, cometnode.DefaultMetricsProvider(conf.Instrumentation), logger)
	if err != nil {
		return err
	}
	member.set(func() *cometnode.Node { return n })
	if err := n.Start(); err != nil {
		return err
	}
	err = member.attack(ctx, onto, logger, nil)
	err = errors.Join(err, n.Stop())
	n.Wait()
	return err
}

// fileValidator exposes the key of CometBFT's validator, with which package voter signs.
type fileValidator struct{ *privval.FilePV }

// PrivKey returns the validator's key.
func (f fileValidator) PrivKey() crypto.PrivKey { return f.Key.PrivKey }
