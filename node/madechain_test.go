package node

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/privval"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	sm "github.com/cometbft/cometbft/state"
	"github.com/cometbft/cometbft/store"
	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/statesync/catchup"
	"github.com/starling-kv/starling/storage/blocks"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/transporttest"
	"github.com/starling-kv/starling/tx"
)

// station is a home whose chain is opened as for catching up, without a network. A test makes its
// blocks and signs them for all validators, or lets it catch up from others. A chain of a hundred
// blocks takes a fraction of a second.
type station struct {
	t           *testing.T
	home        string
	conf        *config.Config
	databases   *comet.Databases
	application *Application
	executor    *comet.Executor
	failed      error // reason for which the node would be stopped
	signer      *chainKeys
}

// chainKeys has the keys of all validators that the chain ever has.
type chainKeys struct {
	keys   map[string]ed25519.PrivKey // by address
	admin  ed25519.PrivKey
	nonce  uint64        // of the admin's next transaction
	commit *types.Commit // of the last block
}

// newValidator creates a key that can become a validator.
func (s *chainKeys) newValidator(name string) ed25519.PrivKey {
	key := ed25519.GenPrivKeyFromSecret([]byte(name))
	s.keys[string(key.PubKey().Address())] = key
	return key
}

// operation is an admin's transaction.
func (s *chainKeys) operation(t *testing.T, operations ...tx.Operation) []byte {
	t.Helper()
	raw, err := tx.Sign(s.admin, "test-chain", &tx.Body{Nonce: s.nonce, Operations: operations})
	require.NoError(t, err)
	s.nonce++
	return raw
}

// newMadeChain is an empty chain that began a day ago, so that nodes do not consider it young.
func newMadeChain(t *testing.T, edit func(*types.GenesisDoc)) *station {
	t.Helper()
	s := &chainKeys{keys: map[string]ed25519.PrivKey{}, admin: ed25519.GenPrivKeyFromSecret([]byte("admin")), commit: new(types.Commit)}
	dir, _ := nodetest.Home(t, func(o *home.InitOptions) {
		o.App = app.Genesis{Open: true, Admins: []string{fmt.Sprintf("%x", s.admin.PubKey().Bytes())}}
	})
	conf := nodetest.Load(t, dir).CometBFT
	doc, err := types.GenesisDocFromFile(conf.GenesisFile())
	require.NoError(t, err)
	doc.GenesisTime = time.Now().Add(-24 * time.Hour).UTC()
	if edit != nil {
		edit(doc)
	}
	require.NoError(t, doc.SaveAs(conf.GenesisFile()))
	key := privval.LoadFilePV(conf.PrivValidatorKeyFile(), conf.PrivValidatorStateFile()).Key
	s.keys[string(key.Address)] = key.PrivKey.(ed25519.PrivKey)
	c := &station{t: t, home: dir, signer: s}
	c.open(nil)
	return c
}

// newFollower is another home of the same chain.
func (c *station) newFollower() *station {
	c.t.Helper()
	dir, _ := nodetest.Home(c.t, func(o *home.InitOptions) { o.GenesisFile = nodetest.Load(c.t, c.home).CometBFT.GenesisFile() })
	f := &station{t: c.t, home: dir}
	f.open(nil)
	return f
}

// open opens the home until close, or the end of the test.
func (c *station) open(faulty func(*blocks.Options)) {
	c.t.Helper()
	c.conf = nodetest.Load(c.t, c.home)
	genesis, err := config.LoadGenesis(c.conf.CometBFT.GenesisFile())
	require.NoError(c.t, err)
	zone := blocks.Options{Logger: log.NewNopLogger()}
	if faulty != nil {
		faulty(&zone)
	}
	c.failed = nil
	c.databases = comet.NewDatabases(c.conf.CometBFT, log.NewNopLogger(), zone)
	have, err := c.databases.Open()
	require.NoError(c.t, err)
	c.application, err = NewApplication(ApplicationOptions{
		DataDir: c.conf.CometBFT.DBDir(), Config: c.conf.App, Logger: log.NewNopLogger(), Genesis: genesis, NoBlocks: have.None(), SyncBlocks: c.databases.Sync,
		Failed: func(err error) { c.failed = err },
	})
	require.NoError(c.t, err)
	c.t.Cleanup(c.close)
	instance := comet.New(comet.Options{
		Config: c.conf.CometBFT, Logger: log.NewNopLogger(), Genesis: genesis, Databases: c.databases, Height: c.application.Height,
		Application: comet.NewHalter(c.application, c.conf.App.HaltHeight, c.application.CanGoOn, func(err error) { c.failed = err }),
	})
	c.executor, err = instance.Executor(c.t.Context())
	require.NoError(c.t, err)
}

func (c *station) close() {
	if c.databases == nil {
		return
	}
	if c.executor != nil {
		require.NoError(c.t, c.executor.Close())
	}
	require.NoError(c.t, c.application.Close())
	require.NoError(c.t, c.databases.Close())
	c.databases, c.executor = nil, nil
}

func (c *station) state() sm.State {
	c.t.Helper()
	states, err := c.databases.States()
	require.NoError(c.t, err)
	state, err := states.Load()
	require.NoError(c.t, err)
	return state
}

func (c *station) blocks() *store.BlockStore {
	c.t.Helper()
	s, err := c.databases.Blocks()
	require.NoError(c.t, err)
	return s
}

// block returns the next block with a commit signed by all validators. change, which may be nil,
// changes the block before it is signed.
func (c *station) block(txs []types.Tx, evidence []types.Evidence, change func(*types.Block)) catchup.Block {
	c.t.Helper()
	state := c.state()
	height := state.LastBlockHeight + 1
	b, err := state.MakeBlock(height, txs, c.signer.commit, evidence, state.Validators.Proposer.Address)
	require.NoError(c.t, err)
	if change != nil {
		change(b)
	}
	parts, err := b.MakePartSet(types.BlockPartSizeBytes)
	require.NoError(c.t, err)
	id := types.BlockID{Hash: b.Hash(), PartSetHeader: parts.Header()}
	return catchup.Block{Block: b, ID: id, Parts: parts, Commit: c.commit(id, b.Time.Add(time.Second), state.Validators), Bytes: b.Size()}
}

// commit returns the commit of the next block, signed by a validator set.
func (c *station) commit(id types.BlockID, at time.Time, validators *types.ValidatorSet) *types.Commit {
	c.t.Helper()
	commit := &types.Commit{Height: c.executor.Height() + 1, BlockID: id}
	for i := range validators.Validators {
		commit.Signatures = append(commit.Signatures, c.vote(validators, i, id, at).CommitSig())
	}
	return commit
}

// vote is a validator's precommit for the next block.
func (c *station) vote(validators *types.ValidatorSet, index int, id types.BlockID, at time.Time) *types.Vote {
	c.t.Helper()
	address := validators.Validators[index].Address
	v := &types.Vote{
		Type: cmtproto.PrecommitType, Height: c.executor.Height() + 1, BlockID: id, Timestamp: at, ValidatorAddress: address, ValidatorIndex: int32(index),
	}
	var err error
	v.Signature, err = c.signer.keys[string(address)].Sign(types.VoteSignBytes("test-chain", v.ToProto()))
	require.NoError(c.t, err)
	return v
}

// twoVotes is evidence that a validator voted twice, for blocks that do not exist. It adds a block
// at that height.
func (c *station) twoVotes(address types.Address) *types.DuplicateVoteEvidence {
	c.t.Helper()
	validators := c.state().Validators
	index, _ := validators.GetByAddress(address)
	b := c.block(nil, nil, nil)
	id := func(fill byte) types.BlockID {
		hash := bytes.Repeat([]byte{fill}, 32)
		return types.BlockID{Hash: hash, PartSetHeader: types.PartSetHeader{Total: 1, Hash: hash}}
	}
	twice, err := types.NewDuplicateVoteEvidence(c.vote(validators, int(index), id(1), b.Time), c.vote(validators, int(index), id(2), b.Time), b.Time, validators)
	require.NoError(c.t, err)
	require.NoError(c.t, c.add(b))
	return twice
}

// load returns the block of a height with its commit.
func (c *station) load(height int64) catchup.Block {
	c.t.Helper()
	b, meta := c.blocks().LoadBlock(height), c.blocks().LoadBlockMeta(height)
	parts, err := b.MakePartSet(types.BlockPartSizeBytes)
	require.NoError(c.t, err)
	return catchup.Block{Block: b, ID: meta.BlockID, Parts: parts, Commit: c.blocks().LoadSeenCommit(height), Bytes: meta.BlockSize}
}

// add executes a block, and makes it the last one.
func (c *station) add(b catchup.Block) error {
	if err := c.executor.Apply(c.t.Context(), b); err != nil {
		return err
	}
	c.signer.commit = b.Commit
	return nil
}

// grow makes blocks with one transaction each until the chain has height.
func (c *station) grow(height int64) {
	c.t.Helper()
	for h := c.executor.Height() + 1; h <= height; h++ {
		require.NoError(c.t, c.add(c.block([]types.Tx{fmt.Appendf(nil, "key-%03d=%d", h, h)}, nil, nil)))
	}
}

// testPeer serves the blocks of a chain.
type testPeer struct {
	id     transport.ID
	blocks catchup.Blocks
	claim  catchup.Claim
}

// peer serves the station's blocks.
func (c *station) peer(id transport.ID) testPeer {
	return testPeer{id, c.blocks(), catchup.Claim{First: max(c.blocks().Base(), 1), Last: c.blocks().Height()}}
}

// catchUp catches up from peers. It returns the banned peers.
func (c *station) catchUp(ctx context.Context, peers ...testPeer) (banned []transport.ID, err error) {
	c.t.Helper()
	network := new(transporttest.Network)
	var list []catchup.Peer
	for _, p := range peers {
		server, mux := catchup.NewServer(nil), new(transport.Mux)
		server.SetBlocks(p.blocks)
		server.Register(mux)
		listener, err := network.Listen(string(p.id), transporttest.Config{ID: p.id, ChainID: "test-chain", Handler: mux})
		require.NoError(c.t, err)
		defer listener.Close()
		conn, err := network.Dialer(transporttest.Config{ID: "joiner", ChainID: "test-chain"}).Dial(ctx, listener.Address())
		require.NoError(c.t, err)
		defer conn.Close()
		list = append(list, catchup.Peer{Conn: conn, Claim: p.claim})
	}
	err = catchup.Run(ctx, catchup.Options{
		ChainID: "test-chain", Chain: c.executor, Peers: func() ([]catchup.Peer, <-chan struct{}, bool) { return list, nil, true },
		Ban: func(id transport.ID, _ string) { banned = append(banned, id) },
	})
	return banned, err
}

// same requires that the station has the blocks, validators and state of another one up to its own
// height.
func (c *station) same(other *station) {
	c.t.Helper()
	states, err := c.databases.States()
	require.NoError(c.t, err)
	others, err := other.databases.States()
	require.NoError(c.t, err)
	height := c.executor.Height()
	for h := int64(1); h <= height; h++ {
		require.Equal(c.t, other.blocks().LoadBlockMeta(h), c.blocks().LoadBlockMeta(h))
		want, err := others.LoadValidators(h)
		require.NoError(c.t, err)
		got, err := states.LoadValidators(h)
		require.NoError(c.t, err)
		require.Equal(c.t, want.Hash(), got.Hash(), "validators of %d", h)
	}
	at, v := c.application.Latest()
	defer v.Release()
	require.Equal(c.t, height, at)
	hash := v.AppHash()
	require.Equal(c.t, hash[:], c.state().AppHash)
	if height < other.executor.Height() {
		require.Equal(c.t, hash[:], other.blocks().LoadBlockMeta(height+1).Header.AppHash.Bytes())
	}
}
