package joinbench

import (
	"context"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/privval"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	sm "github.com/cometbft/cometbft/state"
	"github.com/cometbft/cometbft/store"
	"github.com/cometbft/cometbft/types"
	"github.com/spf13/viper"

	"github.com/starling-kv/starling/node"
	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/statesync/catchup"
	"github.com/starling-kv/starling/storage/blocks"
	"github.com/starling-kv/starling/storage/sgc"
)

// chain is a home whose blocks are made without consensus, but executed normally.
type chain struct {
	o        Options
	key      *privval.FilePV
	states   sm.Store
	executor *comet.Executor
	random   *rand.ChaCha8
}

// makeChain makes the blocks in a validator's empty home. It calls made after each block.
func makeChain(ctx context.Context, dir string, o Options, made func()) (err error) {
	conf, err := config.Load(dir, viper.New())
	if err != nil {
		return err
	}
	genesis, err := config.LoadGenesis(conf.CometBFT.GenesisFile())
	if err != nil {
		return err
	}
	logger := log.NewNopLogger()
	var failed error
	cache := sgc.New(conf.App.Disk.SharedCache())
	databases := comet.NewDatabases(conf.CometBFT, logger, blocks.Options{Logger: logger, Cache: cache, CacheBytes: conf.App.Disk.DatabaseCache()})
	defer func() { err = first(err, databases.Close()) }()
	if _, err := databases.Open(); err != nil {
		return err
	}
	application, err := node.NewApplication(node.ApplicationOptions{
		DataDir: conf.CometBFT.DBDir(), Config: conf.App, Logger: logger, Genesis: genesis, Cache: cache, NoBlocks: true, SyncBlocks: databases.Sync,
		Failed: func(err error) { failed = err },
	})
	if err != nil {
		return err
	}
	defer func() { err = first(err, application.Close()) }()
	instance := comet.New(comet.Options{
		Config: conf.CometBFT, Logger: logger, Genesis: genesis, Databases: databases,
		Application: comet.NewHalter(application, 0, application.CanGoOn, func(err error) { failed = err }),
		Height:      application.Height, Restored: func() int64 { return 0 },
		Serve: func(*store.BlockStore, sm.Store, func(types.Evidence) error) {},
	})
	c := &chain{o: o, key: privval.LoadFilePV(conf.CometBFT.PrivValidatorKeyFile(), conf.CometBFT.PrivValidatorStateFile()), random: rand.NewChaCha8([32]byte{byte(o.Seed)})}
	if c.executor, err = instance.Executor(ctx); err != nil {
		return err
	}
	defer func() { err = first(err, c.executor.Close()) }()
	if c.states, err = databases.States(); err != nil {
		return err
	}
	last := new(types.Commit)
	for range o.Blocks + 1 { // nodes do not serve their last block
		if last, err = c.add(ctx, last); err != nil {
			return err
		}
		if failed != nil {
			return failed
		}
		made()
	}
	return nil
}

// add makes, signs and executes a block, and returns its commit.
func (c *chain) add(ctx context.Context, last *types.Commit) (*types.Commit, error) {
	state, err := c.states.Load()
	if err != nil {
		return nil, err
	}
	height := state.LastBlockHeight + 1
	block, err := state.MakeBlock(height, c.txs(height), last, nil, state.Validators.Proposer.Address)
	if err != nil {
		return nil, err
	}
	parts, err := block.MakePartSet(types.BlockPartSizeBytes)
	if err != nil {
		return nil, err
	}
	id := types.BlockID{Hash: block.Hash(), PartSetHeader: parts.Header()}
	vote := types.Vote{
		Type: cmtproto.PrecommitType, Height: height, BlockID: id, Timestamp: block.Time.Add(time.Second), ValidatorAddress: c.key.Key.Address,
	}
	if vote.Signature, err = c.key.Key.PrivKey.Sign(types.VoteSignBytes(state.ChainID, vote.ToProto())); err != nil {
		return nil, err
	}
	commit := &types.Commit{Height: height, BlockID: id, Signatures: []types.CommitSig{vote.CommitSig()}}
	return commit, c.executor.Apply(ctx, catchup.Block{Block: block, ID: id, Parts: parts, Commit: commit, Bytes: block.Size()})
}

// txs returns the transactions of a block. Each writes a value that hardly compresses.
func (c *chain) txs(height int64) types.Txs {
	txs := make(types.Txs, c.o.BlockBytes/c.o.ValueBytes)
	for i := range txs {
		raw := make([]byte, c.o.ValueBytes*3/4)
		_, _ = c.random.Read(raw) // never fails
		txs[i] = fmt.Appendf(nil, "key-%06d-%02d=%s", height, i, base64.RawStdEncoding.EncodeToString(raw))
	}
	return txs
}

// first returns the first error.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
