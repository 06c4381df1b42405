package blocks

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	dbm "github.com/cometbft/cometbft-db"
	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/libs/pubsub/query"
	sm "github.com/cometbft/cometbft/state"
	"github.com/cometbft/cometbft/state/txindex"
	"github.com/cometbft/cometbft/state/txindex/kv"
	"github.com/cometbft/cometbft/store"
	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/storage/sgc"
)

// chain is CometBFT's own stores over three databases.
type chain struct {
	blocks *store.BlockStore
	states sm.Store
	txs    *kv.TxIndex
}

func newChain(db func(id string) dbm.DB) chain {
	return chain{store.NewBlockStore(db("blockstore")), sm.NewStore(db("state"), sm.StoreOptions{}), kv.NewTxIndex(db("tx_index"))}
}

func chainCommit(height int64, id types.BlockID, val *types.Validator) *types.Commit {
	signature := sha256.Sum256(fmt.Appendf(nil, "signature %d", height))
	return &types.Commit{Height: height, BlockID: id, Signatures: []types.CommitSig{{
		BlockIDFlag: types.BlockIDFlagCommit, ValidatorAddress: val.Address, Timestamp: time.Unix(height, 0).UTC(),
		Signature: bytes.Repeat(signature[:], 2),
	}}}
}

// grow appends blocks up to height to. Every fifth block is large.
func (c chain) grow(t *testing.T, state sm.State, to int64) sm.State {
	t.Helper()
	commit := &types.Commit{}
	if h := state.LastBlockHeight; h > 0 {
		commit = c.blocks.LoadSeenCommit(h)
		require.NotNil(t, commit)
	}
	val := state.Validators.Validators[0]
	for height := state.LastBlockHeight + 1; height <= to; height++ {
		txs := []types.Tx{fmt.Appendf(nil, "key %d=value", height)}
		if height%5 == 0 {
			txs = append(txs, bytes.Repeat([]byte{byte(height)}, 300_000))
		}
		block, err := state.MakeBlock(height, txs, commit, nil, val.Address)
		require.NoError(t, err)
		parts, err := block.MakePartSet(types.BlockPartSizeBytes)
		require.NoError(t, err)
		id := types.BlockID{Hash: block.Hash(), PartSetHeader: parts.Header()}
		commit = chainCommit(height, id, val)
		c.blocks.SaveBlock(block, parts, commit)
		results := &abci.ResponseFinalizeBlock{AppHash: block.Hash()}
		batch := txindex.NewBatch(int64(len(txs)))
		for i, tx := range txs {
			event := abci.Event{Type: "set", Attributes: []abci.EventAttribute{{Key: "kind", Value: fmt.Sprint(i), Index: true}}}
			result := &abci.ExecTxResult{Data: []byte("ok"), Events: []abci.Event{event}}
			results.TxResults = append(results.TxResults, result)
			require.NoError(t, batch.Add(&abci.TxResult{Height: height, Index: uint32(i), Tx: tx, Result: *result}))
		}
		require.NoError(t, c.states.SaveFinalizeBlockResponse(height, results))
		require.NoError(t, c.txs.AddBatch(batch))
		state.LastBlockHeight, state.LastBlockID, state.LastBlockTime, state.AppHash = height, id, time.Unix(height, 0).UTC(), block.Hash()
		state.LastValidators = state.Validators.Copy()
		require.NoError(t, c.states.Save(state))
	}
	return state
}

// requireSameBlock compares the blocks without their cached hashes.
func requireSameBlock(t *testing.T, want, got *types.Block) {
	t.Helper()
	require.Equal(t, want == nil, got == nil)
	if want == nil {
		return
	}
	wantProto, err := want.ToProto()
	require.NoError(t, err)
	gotProto, err := got.ToProto()
	require.NoError(t, err)
	require.Equal(t, wantProto, gotProto)
}

// search returns the results in block order, because the index does not sort.
func (c chain) search(t *testing.T, q string) []*abci.TxResult {
	t.Helper()
	found, err := c.txs.Search(context.Background(), query.MustCompile(q))
	require.NoError(t, err)
	slices.SortFunc(found, func(a, b *abci.TxResult) int {
		return cmp.Or(cmp.Compare(a.Height, b.Height), cmp.Compare(a.Index, b.Index))
	})
	return found
}

// requireLike compares loaded data twice; the second time it may come from a cache.
func (c chain) requireLike(t *testing.T, want chain, height int64) {
	t.Helper()
	require.Equal(t, want.blocks.Base(), c.blocks.Base())
	require.Equal(t, height, c.blocks.Height())
	for range 2 {
		for h := int64(1); h <= height+1; h++ {
			block := want.blocks.LoadBlock(h)
			requireSameBlock(t, block, c.blocks.LoadBlock(h))
			require.Equal(t, want.blocks.LoadBlockMeta(h), c.blocks.LoadBlockMeta(h))
			require.Equal(t, want.blocks.LoadBlockCommit(h).ToProto(), c.blocks.LoadBlockCommit(h).ToProto())
			require.Equal(t, want.blocks.LoadSeenCommit(h).ToProto(), c.blocks.LoadSeenCommit(h).ToProto())
			if block != nil {
				requireSameBlock(t, block, c.blocks.LoadBlockByHash(block.Hash()))
				got, err := c.txs.Get(block.Txs[0].Hash())
				require.NoError(t, err)
				require.Equal(t, h, got.Height)
			}
			wantVals, wantErr := want.states.LoadValidators(h)
			vals, err := c.states.LoadValidators(h)
			require.Equal(t, wantErr, err)
			require.Equal(t, wantVals, vals)
			wantResults, wantErr := want.states.LoadFinalizeBlockResponse(h)
			results, err := c.states.LoadFinalizeBlockResponse(h)
			require.Equal(t, wantErr, err)
			require.Equal(t, wantResults, results)
		}
		wantState, err := want.states.Load()
		require.NoError(t, err)
		state, err := c.states.Load()
		require.NoError(t, err)
		require.Equal(t, wantState, state)
		for _, q := range []string{"set.kind = '1'", "tx.height > 7", "tx.height = 5 AND set.kind EXISTS", "set.kind CONTAINS '0'"} {
			wantFound := want.search(t, q)
			require.NotEmpty(t, wantFound)
			require.Equal(t, wantFound, c.search(t, q))
		}
	}
}

// TestCometStores: CometBFT's stores over a zone behave as over cometbft-db's own memory database:
// save, load, search, prune and roll back, including after the zone was closed, compacted and
// reopened.
func TestCometStores(t *testing.T) {
	key := ed25519.GenPrivKeyFromSecret([]byte("validator")).PubKey()
	genesis := &types.GenesisDoc{
		ChainID: "test", GenesisTime: time.Unix(0, 0).UTC(), Validators: []types.GenesisValidator{{PubKey: key, Power: 10}},
		ConsensusParams: types.DefaultConsensusParams(),
	}
	genesis.ConsensusParams.Evidence.MaxAgeNumBlocks, genesis.ConsensusParams.Evidence.MaxAgeDuration = 3, time.Nanosecond
	fs := vfs.NewMem()
	cache := sgc.New(8 << 20)
	open := func() (*Zone, chain) {
		z, err := Open("zone", Options{FS: fs, Cache: cache, MemTableBytes: smallMemTable})
		require.NoError(t, err)
		return z, newChain(z.DB)
	}
	memory := map[string]dbm.DB{}
	memoryDB := func(id string) dbm.DB {
		if memory[id] == nil {
			memory[id] = dbm.NewMemDB()
		}
		return memory[id]
	}
	want := newChain(memoryDB)
	z, got := open()
	both := func(do func(c chain)) {
		do(want)
		do(got)
	}
	const last = 40
	both(func(c chain) {
		state, err := c.states.LoadFromDBOrGenesisDoc(genesis)
		require.NoError(t, err)
		require.NoError(t, c.states.Save(state))
		c.grow(t, state, last/2)
	})
	got.requireLike(t, want, last/2)
	require.NotZero(t, cache.Stats().Zones[sgc.Blocks].Hits)

	require.NoError(t, z.Close())
	cache = sgc.New(8 << 20) // a cache belongs to one zone
	want = newChain(memoryDB)
	z, got = open()
	both(func(c chain) {
		state, err := c.states.Load()
		require.NoError(t, err)
		state = c.grow(t, state, last)
		pruned, _, err := c.blocks.PruneBlocks(30, state)
		require.NoError(t, err)
		require.Equal(t, uint64(29), pruned)
		require.NoError(t, c.states.PruneStates(1, 30, 25))
	})
	// The block store keeps pruned commits in a cache of its own.
	want, got = newChain(memoryDB), newChain(z.DB)
	got.requireLike(t, want, last)
	require.NoError(t, z.Compact(context.Background(), nil))
	got.requireLike(t, want, last)
	both(func(c chain) { require.NoError(t, c.blocks.DeleteLatestBlock()) })
	require.NoError(t, z.Close())
	want = newChain(memoryDB)
	z, got = open()
	got.requireLike(t, want, last-1)
	for id, db := range memory { // byte by byte
		require.Equal(t, content(t, db), content(t, z.DB(id)), id)
	}
	require.NoError(t, z.Close())
}
