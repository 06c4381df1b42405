package joinbench

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
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

// Chain is an open home without a network. Its blocks are made without consensus, or fetched, and
// executed as by a node that catches up.
type Chain struct {
	Databases   *comet.Databases
	Application *node.Application
	Executor    *comet.Executor

	key    *privval.FilePV // of the home: see Add
	states sm.Store
	last   *types.Commit         // of the last block that Add made
	failed atomic.Pointer[error] // of another goroutine; nil: none
}

// OpenChain opens a home on which no node is running.
func OpenChain(ctx context.Context, dir string) (_ *Chain, err error) {
	conf, err := config.Load(dir, viper.New())
	if err != nil {
		return nil, err
	}
	genesis, err := config.LoadGenesis(conf.CometBFT.GenesisFile())
	if err != nil {
		return nil, err
	}
	c := &Chain{key: privval.LoadFilePV(conf.CometBFT.PrivValidatorKeyFile(), conf.CometBFT.PrivValidatorStateFile()), last: new(types.Commit)}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	logger := log.NewNopLogger()
	cache := sgc.New(conf.App.Disk.SharedCache())
	c.Databases = comet.NewDatabases(conf.CometBFT, logger, blocks.Options{Logger: logger, Cache: cache, CacheBytes: conf.App.Disk.DatabaseCache()})
	have, err := c.Databases.Open()
	if err != nil {
		return nil, err
	}
	failed := func(err error) { c.failed.Store(&err) }
	c.Application, err = node.NewApplication(node.ApplicationOptions{
		DataDir: conf.CometBFT.DBDir(), Config: conf.App, Logger: logger, Genesis: genesis, Cache: cache, NoBlocks: have.None(), SyncBlocks: c.Databases.Sync, Failed: failed,
	})
	if err != nil {
		return nil, err
	}
	instance := comet.New(comet.Options{
		Config: conf.CometBFT, Logger: logger, Genesis: genesis, Databases: c.Databases,
		Application: comet.NewHalter(c.Application, 0, c.Application.CanGoOn, failed),
		Height:      c.Application.Height, Restored: func() int64 { return 0 },
		Serve: func(*store.BlockStore, sm.Store, func(types.Evidence) error) {},
	})
	if c.Executor, err = instance.Executor(ctx); err != nil {
		return nil, err
	}
	if c.states, err = c.Databases.States(); err != nil {
		return nil, err
	}
	return c, nil
}

// Close makes all blocks durable and closes the home. It also returns the failure of another
// goroutine. Later calls close nothing.
func (c *Chain) Close() (err error) {
	if c.Executor != nil {
		err = c.Executor.Close()
	}
	if c.Application != nil {
		err = errors.Join(err, c.Application.Close())
	}
	if c.Databases != nil {
		err = errors.Join(err, c.Databases.Close())
	}
	c.Executor, c.Application, c.Databases = nil, nil, nil
	return errors.Join(err, c.err())
}

// Add makes, signs and executes a block. The home must have the key of the only validator, and no
// blocks when it is opened.
func (c *Chain) Add(ctx context.Context, txs types.Txs) error {
	state, err := c.states.Load()
	if err != nil {
		return err
	}
	height := state.LastBlockHeight + 1
	block, err := state.MakeBlock(height, txs, c.last, nil, state.Validators.Proposer.Address)
	if err != nil {
		return err
	}
	parts, err := block.MakePartSet(types.BlockPartSizeBytes)
	if err != nil {
		return err
	}
	id := types.BlockID{Hash: block.Hash(), PartSetHeader: parts.Header()}
	vote := types.Vote{
		Type: cmtproto.PrecommitType, Height: height, BlockID: id, Timestamp: block.Time.Add(time.Second), ValidatorAddress: c.key.Key.Address,
	}
	if vote.Signature, err = c.key.Key.PrivKey.Sign(types.VoteSignBytes(state.ChainID, vote.ToProto())); err != nil {
		return err
	}
	c.last = &types.Commit{Height: height, BlockID: id, Signatures: []types.CommitSig{vote.CommitSig()}}
	if err := c.Executor.Apply(ctx, catchup.Block{Block: block, ID: id, Parts: parts, Commit: c.last, Bytes: block.Size()}); err != nil {
		return err
	}
	return c.err()
}

// err returns the failure of another goroutine.
func (c *Chain) err() error {
	if err := c.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// makeChain makes the blocks in a validator's empty home. It calls made after each block.
func makeChain(ctx context.Context, dir string, o Options, made func()) (err error) {
	c, err := OpenChain(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	random := rand.NewChaCha8([32]byte{byte(o.Seed)})
	for height := range int64(o.Blocks + 1) { // nodes do not serve their last block
		if err := c.Add(ctx, o.txs(height+1, random)); err != nil {
			return err
		}
		made()
	}
	return nil
}

// txs returns the transactions of a block. Each writes a value that hardly compresses.
func (o Options) txs(height int64, random *rand.ChaCha8) types.Txs {
	txs := make(types.Txs, o.BlockBytes/o.ValueBytes)
	for i := range txs {
		raw := make([]byte, o.ValueBytes*3/4)
		_, _ = random.Read(raw) // never fails
		txs[i] = fmt.Appendf(nil, "key-%06d-%02d=%s", height, i, base64.RawStdEncoding.EncodeToString(raw))
	}
	return txs
}
