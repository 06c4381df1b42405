package main

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"cosmossdk.io/log/v2"
	cmtdb "github.com/cometbft/cometbft-db"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	sm "github.com/cometbft/cometbft/state"
	cmtstore "github.com/cometbft/cometbft/store"
	cmt "github.com/cometbft/cometbft/types"
	dbm "github.com/cosmos/cosmos-db"
	"github.com/cosmos/cosmos-sdk/store/v2/rootmulti"
	"github.com/cosmos/cosmos-sdk/store/v2/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/codefiles"
)

const (
	chainID = "demo-1"
	latest  = 12 // of the stopped node
	trusted = 5
)

var stores = []string{"acc", "bank", "consensus", "gov", "params", "wasm"}

// stopped is the home of a stopped node, and what its chain has agreed on.
type stopped struct {
	home   string
	hashes map[int64][]byte // app hash after each height
	blocks map[int64][]byte // header hash of each height
	params cmt.ConsensusParams
}

// application opens the SDK's multi-store in a home.
func application(t *testing.T, home string, backend dbm.BackendType) (*rootmulti.Store, map[string]*types.KVStoreKey, dbm.DB) {
	db, err := dbm.NewDB(applicationDB, backend, dataDir(home))
	require.NoError(t, err)
	s := rootmulti.NewStore(db, log.NewNopLogger())
	keys := map[string]*types.KVStoreKey{}
	for _, name := range stores {
		keys[name] = types.NewKVStoreKey(name)
		s.MountStoreWithDB(keys[name], types.StoreTypeIAVL, nil)
	}
	require.NoError(t, s.LoadLatestVersion())
	return s, keys, db
}

// block executes the block of a height, and returns the app hash.
func block(s *rootmulti.Store, keys map[string]*types.KVStoreKey, height int64) []byte {
	bank := s.GetKVStore(keys["bank"])
	for i := range 500 {
		n := (int64(i)*7919 + height*104729) % 20000
		bank.Set(fmt.Appendf(nil, "balance/%05d", n), fmt.Appendf(nil, "%d at %d", n, height))
	}
	bank.Delete(fmt.Appendf(nil, "balance/%05d", height*104729%20000))
	if height == 2 {
		s.GetKVStore(keys["params"]).Set([]byte("max"), []byte("7"))
	}
	return s.Commit().Hash
}

// newStopped makes the home of a stopped node: an application at its latest height, and CometBFT
// with the blocks up to there.
func newStopped(t *testing.T, backend dbm.BackendType) *stopped { return newFilled(t, backend, 0) }

// newFilled is newStopped with more additional leaves in the bank store.
func newFilled(t *testing.T, backend dbm.BackendType, more int) *stopped {
	return newChain(t, backend, more, 0, nil)
}

// newChain is newFilled with additional blocks in CometBFT, after the application's height. Unless
// params is nil, the store of x/consensus has these parameters instead of those of the genesis. The
// chain has contracts with these codes, and the home has their files.
func newChain(t *testing.T, backend dbm.BackendType, more, blocks int, params *cmt.ConsensusParams, codes ...[]byte) *stopped {
	s := &stopped{home: t.TempDir(), hashes: map[int64][]byte{}, blocks: map[int64][]byte{}}
	require.NoError(t, os.MkdirAll(filepath.Join(s.home, "data"), 0o700))
	store, keys, db := application(t, s.home, backend)
	bank := store.GetKVStore(keys["bank"])
	for i := range more {
		value := sha512.Sum512(fmt.Append(nil, i))
		bank.Set(fmt.Appendf(nil, "denom/%08d", i), value[:])
	}
	s.params = *cmt.DefaultConsensusParams()
	if params != nil {
		s.params = *params
		p := params.ToProto()
		b, err := p.Marshal()
		require.NoError(t, err)
		store.GetKVStore(keys["consensus"]).Set([]byte("Consensus"), b)
	}
	for i, code := range codes {
		hash := sha256.Sum256(code)
		store.GetKVStore(keys["wasm"]).Set(append([]byte{1}, binary.BigEndian.AppendUint64(nil, uint64(i))...), append([]byte{1<<3 | 2, 32}, hash[:]...))
		require.NoError(t, codefiles.Of("wasm").Write(s.home, code))
	}
	for h := int64(1); h <= latest; h++ {
		s.hashes[h] = block(store, keys, h)
	}
	require.NoError(t, db.Close())
	s.consensus(t, 1, latest+int64(blocks))
	return s
}

// consensus writes CometBFT's databases up to height last, for a chain with one validator that
// begins at height first.
func (s *stopped) consensus(t *testing.T, first, last int64) {
	blockDB, err := cmtdb.NewGoLevelDB("blockstore", dataDir(s.home))
	require.NoError(t, err)
	stateDB, err := cmtdb.NewGoLevelDB("state", dataDir(s.home))
	require.NoError(t, err)
	blocks, states := cmtstore.NewBlockStore(blockDB), sm.NewStore(stateDB, sm.StoreOptions{})
	pv := cmt.NewMockPV()
	key, err := pv.GetPubKey()
	require.NoError(t, err)
	start := time.Now().Add(-time.Hour).UTC()
	state, err := sm.MakeGenesisState(&cmt.GenesisDoc{ChainID: chainID, GenesisTime: start, InitialHeight: first,
		ConsensusParams: &s.params, Validators: []cmt.GenesisValidator{{PubKey: key, Power: 10}}})
	require.NoError(t, err)
	require.NoError(t, states.Save(state))
	commit := &cmt.Commit{}
	for h := first; h <= last; h++ {
		b, err := state.MakeBlock(h, nil, commit, nil, key.Address())
		require.NoError(t, err)
		parts, err := b.MakePartSet(cmt.BlockPartSizeBytes)
		require.NoError(t, err)
		id := cmt.BlockID{Hash: b.Hash(), PartSetHeader: parts.Header()}
		vote := &cmt.Vote{Type: cmtproto.PrecommitType, Height: h, BlockID: id, Timestamp: start.Add(time.Duration(h-first+1) * time.Second),
			ValidatorAddress: key.Address()}
		v := vote.ToProto()
		require.NoError(t, pv.SignVote(chainID, v))
		vote.Signature = v.Signature
		commit = &cmt.Commit{Height: h, BlockID: id, Signatures: []cmt.CommitSig{vote.CommitSig()}}
		blocks.SaveBlock(b, parts, commit)
		s.blocks[h] = b.Hash()
		state.LastBlockHeight, state.LastBlockID, state.LastBlockTime = h, id, b.Time
		state.LastValidators, state.AppHash = state.Validators.Copy(), s.hashes[h]
		require.NoError(t, states.Save(state))
	}
	require.NoError(t, blocks.Close())
	require.NoError(t, stateDB.Close())
}
