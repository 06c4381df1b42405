package app

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/tx"
)

const aliceOwnsA = `{"chunk_bytes": 300, "admins": ["@root"], "grants": [{"grantee": "@alice", "prefix": "a"}]}`

func commitBlock(a *App) error {
	_, err := a.Commit(ctx, &abci.RequestCommit{})
	return err
}

// Before InitChain, and after invalid calls, every call returns and none panics.
func TestBeforeGenesis(t *testing.T) {
	a := newTestApp(t, &memoryStore{})
	_, err := a.FinalizeBlock(ctx, &abci.RequestFinalizeBlock{Height: 1})
	require.ErrorIs(t, err, errNoGenesis)
	_, err = a.PrepareProposal(ctx, &abci.RequestPrepareProposal{Txs: [][]byte{nil}})
	require.ErrorIs(t, err, errNoGenesis)
	_, err = a.ProcessProposal(ctx, &abci.RequestProcessProposal{Txs: [][]byte{nil}})
	require.ErrorIs(t, err, errNoGenesis)
	require.ErrorContains(t, commitBlock(a), "commit without a finalized block")
	checked, err := a.CheckTx(ctx, &abci.RequestCheckTx{Tx: []byte("a=b")})
	require.NoError(t, err)
	require.Equal(t, uint32(tx.CodeUnknownHeight), checked.Code)
	for _, path := range []string{PathKey, PathRange, PathNonce} {
		res, err := a.Query(ctx, &abci.RequestQuery{Path: path, Data: account("alice"), Prove: path == PathKey})
		require.NoError(t, err)
		require.NotZero(t, res.Code)
	}
	info, err := a.Info(ctx, &abci.RequestInfo{})
	require.NoError(t, err)
	require.Equal(t, &abci.ResponseInfo{Data: "starling", AppVersion: 1}, info)
	for _, req := range []*abci.RequestInitChain{{}, {ChainId: testChain, AppStateBytes: []byte(`{}`)}} {
		_, err = a.InitChain(ctx, req)
		require.Error(t, err)
	}
}

// CometBFT calls InitChain again until the first block is committed. After that, its data and the
// state do not match.
func TestInitChainAgain(t *testing.T) {
	a := newTestApp(t, &memoryStore{})
	first, err := a.InitChain(ctx, initRequest(aliceOwnsA))
	require.NoError(t, err)
	finalize(t, a, sign(t, "alice", 0, put("a", "1")))
	second, err := a.InitChain(ctx, initRequest(aliceOwnsA))
	require.NoError(t, err)
	require.Equal(t, first, second)
	require.ErrorContains(t, commitBlock(a), "commit without a finalized block")
	runBlock(t, a)
	_, err = a.InitChain(ctx, initRequest(aliceOwnsA))
	require.ErrorContains(t, err, "the state is at height 1")
}

// Until Commit, a block may be executed again, or another one in its place, and no reader sees it.
func TestFinalizeBlockAgain(t *testing.T) {
	a := startChain(t, &memoryStore{}, aliceOwnsA)
	runBlock(t, a, sign(t, "alice", 0, put("a", "1")))
	before, err := a.Info(ctx, &abci.RequestInfo{})
	require.NoError(t, err)

	block := [][]byte{sign(t, "alice", 1, put("a", "2")), sign(t, "alice", 2, del("a")), sign(t, "root", 0, grantOp(nil, "b", 5))}
	first := finalize(t, a, block...)
	finalize(t, a, sign(t, "alice", 1, put("a", "other round")))
	require.Equal(t, first, finalize(t, a, block...))

	after, err := a.Info(ctx, &abci.RequestInfo{})
	require.NoError(t, err)
	require.Equal(t, before, after)
	for _, path := range []string{PathKey, ""} { // the latter as in queries of CometBFT's kvstore
		res, err := a.Query(ctx, &abci.RequestQuery{Path: path, Data: []byte("a")})
		require.NoError(t, err)
		require.Equal(t, "1", string(res.Value))
	}
	checked, err := a.CheckTx(ctx, &abci.RequestCheckTx{Tx: block[0]})
	require.NoError(t, err)
	require.Zero(t, checked.Code)

	require.NoError(t, commitBlock(a))
	v := latest(t, a)
	has, err := v.Has([]byte("a"))
	require.NoError(t, err)
	require.False(t, has)
	require.ErrorContains(t, commitBlock(a), "commit without a finalized block")
}

// A state that cannot be saved stops the node: nothing is published, no block is executed any more,
// and a restart executes the block again.
func TestCommitFails(t *testing.T) {
	store := &memoryStore{}
	a := startChain(t, store, aliceOwnsA)
	runBlock(t, a, sign(t, "alice", 0, put("a", "1")))
	broken := errors.New("no space left on device")
	store.mu.failCommits = broken
	block := sign(t, "alice", 1, put("a", "2"))
	want := finalize(t, a, block)
	err := commitBlock(a)
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "save the state of block 2")

	store.mu.failCommits = nil
	require.ErrorIs(t, commitBlock(a), broken)
	_, err = a.FinalizeBlock(ctx, &abci.RequestFinalizeBlock{Height: 2})
	require.ErrorIs(t, err, broken)
	v := latest(t, a)
	require.Equal(t, int64(1), a.Height())
	value, _, err := v.Get([]byte("a"))
	require.NoError(t, err)
	require.Equal(t, "1", string(value))

	a = newTestApp(t, store)
	require.Equal(t, want, runBlock(t, a, block))
}

func TestNewRefuses(t *testing.T) {
	_, err := New(Options{})
	require.ErrorContains(t, err, "no store")

	store := &memoryStore{}
	runBlock(t, startChain(t, store, aliceOwnsA))
	_, err = New(Options{Store: store, ChainID: "another"})
	require.ErrorIs(t, err, ErrOtherChain)
	require.ErrorContains(t, err, `the state is of chain "test-chain", genesis names "another"`)

	store.mu.leaves["z"] = nil // an empty value is not a valid leaf
	_, err = New(Options{Store: store})
	require.ErrorContains(t, err, "load the state")

	params := Params{ChainId: testChain, ChunkBytes: 300}
	for _, test := range []struct {
		change func()
		says   string
	}{
		{func() {}, "name no app version"},
		{func() { params.AppVersion, params.ChunkBytes = 1, 301 }, "its parameters have chunk_bytes 301"},
		{func() { params = Params{} }, "name no app version"},
	} {
		test.change()
		value, err := params.Marshal()
		require.NoError(t, err)
		empty, err := avlstar.Empty(300)
		require.NoError(t, err)
		if len(value) == 0 {
			value = []byte{0x28, 0} // an explicit zero
		}
		v, err := empty.Apply([]avlstar.Change{{Key: ParamsKey(), Value: value}})
		require.NoError(t, err)
		_, err = ReadParams(v)
		require.ErrorContains(t, err, test.says)
		require.ErrorContains(t, newTestApp(t, &memoryStore{}).Restored(3, v), test.says)
	}
	noParams := newBase(t, map[string]string{"a": "1"})
	_, err = ReadParams(noParams)
	require.ErrorIs(t, err, ErrNoState)
	garbage := newBase(t, map[string]string{string(ParamsKey()): "\xff\xff"})
	_, err = ReadParams(garbage)
	require.ErrorIs(t, err, ErrNoState)
}

// A joiner that restored a state executes the chain's next blocks and gets the same hashes.
func TestRestored(t *testing.T) {
	validator := startChain(t, &memoryStore{}, aliceOwnsA)
	runBlock(t, validator, sign(t, "alice", 0, put("a1", "1"), put("a2", "2")))
	runBlock(t, validator, sign(t, "root", 0, validatorOp(account("v2"), 3)))
	height := validator.Height()
	v := copyOf(t, latest(t, validator)) // the validator keeps its own version

	store := &memoryStore{}
	require.NoError(t, store.Commit(height, v, nil, must(everything(v))))
	joiner, err := New(Options{Store: &memoryStore{}, ChainID: "another"})
	require.NoError(t, err)
	require.ErrorIs(t, joiner.Restored(height, v), ErrOtherChain)
	require.Error(t, joiner.Restored(0, v))
	require.Error(t, joiner.Restored(1, nil))

	joiner = newTestApp(t, &memoryStore{})
	joiner.options.Store = store // New saw an empty store; the restore filled it
	require.NoError(t, joiner.Restored(height, v))
	require.ErrorContains(t, joiner.Restored(height, v), "there is a state already")
	v.Release() // the joiner has a reference of its own
	for i := range uint64(3) {
		block := [][]byte{sign(t, "alice", i+1, put("a", fmt.Sprint(i)), read(string(ParamsKey()))), sign(t, "root", i+1, validatorOp(account("v2"), i))}
		require.Equal(t, runBlock(t, validator, block...), runBlock(t, joiner, block...))
	}
}

// copyOf returns another tree with the same leaves, because a tree has a single history.
func copyOf(t testing.TB, v *avlstar.Version) *avlstar.Version {
	t.Helper()
	c, err := avlstar.FromLeaves(v.ChunkBytes(), v.Leaves())
	require.NoError(t, err)
	return c
}

func TestSnapshotsHearOfCommits(t *testing.T) {
	store := &memoryStore{}
	a := startChain(t, store, aliceOwnsA)
	s := &fakeSnapshots{}
	a.SetSnapshots(s)
	runBlock(t, a)
	runBlock(t, a)
	require.Equal(t, []int64{1, 2}, s.mu.heights)

	again := newTestApp(t, store)
	s = &fakeSnapshots{}
	again.SetSnapshots(s)
	require.Equal(t, []int64{2}, s.mu.heights)
	res, err := again.Query(ctx, &abci.RequestQuery{Path: PathSnapshots})
	require.NoError(t, err)
	require.JSONEq(t, `[{"height": 8, "format": 1, "chunks": 2, "hash": "ab"}]`, string(res.Value))
}

// A joiner finds no snapshot without the two headers that it needs, if there is an older one.
func TestSnapshotIsListedTwoBlocksLater(t *testing.T) {
	a := startChain(t, &memoryStore{}, aliceOwnsA)
	s := &fakeSnapshots{listed: []uint64{8}}
	a.SetSnapshots(s)
	first := func() uint64 {
		list, err := a.ListSnapshots(ctx, &abci.RequestListSnapshots{})
		require.NoError(t, err)
		return list.Snapshots[0].Height
	}
	for a.Height() < 8 {
		runBlock(t, a)
	}
	require.EqualValues(t, 8, first(), "the only one")
	s.listed = []uint64{8, 4}
	require.EqualValues(t, 4, first())
	runBlock(t, a)
	require.EqualValues(t, 4, first())
	runBlock(t, a)
	require.EqualValues(t, 8, first())
}

func TestWithoutSnapshots(t *testing.T) {
	a := newTestApp(t, &memoryStore{})
	list, err := a.ListSnapshots(ctx, &abci.RequestListSnapshots{})
	require.NoError(t, err)
	require.Empty(t, list.Snapshots)
	offer, err := a.OfferSnapshot(ctx, &abci.RequestOfferSnapshot{})
	require.NoError(t, err)
	require.Equal(t, abci.ResponseOfferSnapshot_ABORT, offer.Result)
	chunk, err := a.LoadSnapshotChunk(ctx, &abci.RequestLoadSnapshotChunk{})
	require.NoError(t, err)
	require.Empty(t, chunk.Chunk)
	apply, err := a.ApplySnapshotChunk(ctx, &abci.RequestApplySnapshotChunk{})
	require.NoError(t, err)
	require.Equal(t, abci.ResponseApplySnapshotChunk_ABORT, apply.Result)
}

func TestRetainHeight(t *testing.T) {
	for _, test := range []struct{ height, retain, oldest, durable, want int64 }{
		{100, 0, 0, 100, 0},   // all
		{100, 0, 50, 100, 0},  //
		{9, 10, 0, 9, 0},      // fewer blocks than RetainBlocks
		{10, 10, 0, 10, 1},    //
		{100, 10, 0, 100, 91}, //
		{100, 1, 0, 100, 100}, //
		{100, 1, 0, 99, 99},   // a restart needs the later blocks
		{100, 10, 0, 95, 91},
		{100, 10, 0, 50, 50},
		{100, 10, 0, 0, 0},
		{100, 10, 95, 100, 91},
		{100, 10, 40, 100, 40}, // otherwise a snapshot would outlive its blocks
		{100, 10, 40, 30, 30},
		{100, -1, 40, 100, 0},
	} {
		require.Equal(t, test.want, retainHeight(test.height, test.retain, test.oldest, test.durable), "%+v", test)
	}
	store := &memoryStore{}
	a, err := New(Options{Store: store, RetainBlocks: 2})
	require.NoError(t, err)
	_, err = a.InitChain(ctx, initRequest(aliceOwnsA))
	require.NoError(t, err)
	a.SetSnapshots(&fakeSnapshots{oldest: 2})
	var retained []int64
	for range 5 {
		finalize(t, a)
		res, err := a.Commit(ctx, &abci.RequestCommit{})
		require.NoError(t, err)
		retained = append(retained, res.RetainHeight)
	}
	require.Equal(t, []int64{0, 1, 2, 2, 2}, retained)
}

// With a store that is behind, nothing is pruned that a restart needs, published states do not
// wait, and the blocks restore everything that a crash loses.
func TestStoreFallsBehind(t *testing.T) {
	rng := seeds.Rand(t)
	store := &memoryStore{}
	options := Options{Store: store, RetainBlocks: 1, KeepRecent: 2}
	a, err := New(options)
	require.NoError(t, err)
	var (
		blocks  [][][]byte
		answers []*abci.ResponseFinalizeBlock
	)
	for range 300 {
		if a.Height() == 0 { // at first, or after a crash before anything was durable
			_, err := a.InitChain(ctx, initRequest(aliceOwnsA))
			require.NoError(t, err)
		}
		next := int(a.Height())
		if next == len(blocks) {
			blocks = append(blocks, [][]byte{sign(t, "alice", uint64(next), put(fmt.Sprintf("a%d", rng.IntN(50)), fmt.Sprint(next)), del(fmt.Sprintf("a%d", 50+rng.IntN(5))))})
			answers = append(answers, nil)
		}
		res := finalize(t, a, blocks[next]...)
		if answers[next] != nil {
			require.Equal(t, answers[next], res, "block %d again", next+1)
		}
		answers[next] = res
		committed, err := a.Commit(ctx, &abci.RequestCommit{})
		require.NoError(t, err)
		require.EqualValues(t, next+1, a.Height(), "it is visible at once")
		require.Equal(t, store.Durable(), committed.RetainHeight)
		require.LessOrEqual(t, a.Height()-a.Oldest(), int64(1), "pruning_keep_recent")
		require.LessOrEqual(t, a.Height()-store.Durable(), int64(store.lag))
		if rng.IntN(10) == 0 {
			store.lag = rng.IntN(20)
		}
		if rng.IntN(20) == 0 {
			durable := store.Durable()
			a, err = New(options)
			require.NoError(t, err)
			info, err := a.Info(ctx, &abci.RequestInfo{})
			require.NoError(t, err)
			require.Equal(t, durable, info.LastBlockHeight)
		}
	}
	require.Greater(t, len(blocks), 50)
}

// Decoded transactions are remembered up to a limit, and only for their chain.
func TestDecoderForgets(t *testing.T) {
	var d decoder
	raw := sign(t, "alice", 0, put("a", strings.Repeat("x", 1<<20)))
	first, err := d.decode(sha256.Sum256(raw), raw, form{testChain, 1})
	require.Nil(t, err)
	again, err := d.decode(sha256.Sum256(raw), raw, form{testChain, 1})
	require.Nil(t, err)
	require.Same(t, first, again)
	_, err = d.decode(sha256.Sum256(raw), raw, form{"other", 1})
	require.NotNil(t, err)
	require.Equal(t, tx.CodeBadSignature, err.Code)
	for i := range uint64(30) {
		large := sign(t, "alice", i, put("a", strings.Repeat("x", 1<<20)))
		_, err := d.decode(sha256.Sum256(large), large, form{testChain, 1})
		require.Nil(t, err)
		require.LessOrEqual(t, d.mu.cost, maxDecoderCost)
		require.LessOrEqual(t, len(d.mu.recent)+len(d.mu.older), 16)
	}
}

// Verify refuses what CheckTx would refuse for its bytes, and CheckTx finds the rest decoded.
func TestVerify(t *testing.T) {
	txs := [][]byte{sign(t, "alice", 0, put("a", "1")), []byte("no text"), []byte("k=v"), sign(t, "bob", 7, put("b", "2"))}
	forged := bytes.Clone(txs[0])
	forged[len(forged)-1] ^= 1
	txs = append(txs, forged)
	before, err := New(Options{Store: &memoryStore{}})
	require.NoError(t, err)
	require.Equal(t, txs, before.Verify(txs), "without a state the chain is not known")
	a := startChain(t, &memoryStore{}, `{}`)
	valid := a.Verify(txs)
	require.Equal(t, [][]byte{txs[0], txs[2], txs[3]}, valid)
	for _, b := range valid {
		require.NotNil(t, a.decoder.lookup(sha256.Sum256(b), form{testChain, 1}))
	}
	require.Nil(t, a.decoder.lookup(sha256.Sum256(forged), form{testChain, 1}))
}

// A proposal and a block verify no signature again: with a false one that the decoder knows as
// verified, they succeed.
func TestKnownSignatures(t *testing.T) {
	a := startChain(t, &memoryStore{}, `{"grants": [{"grantee": "@alice", "prefix": ""}]}`)
	raw := sign(t, "alice", 0, put("a", "1"))
	known, err := tx.Decode(raw, testChain)
	require.NoError(t, err)
	forged := bytes.Clone(raw)
	forged[len(forged)-1] ^= 1
	process := func() abci.ResponseProcessProposal_ProposalStatus {
		res, err := a.ProcessProposal(ctx, &abci.RequestProcessProposal{Txs: [][]byte{forged}, Height: 1})
		require.NoError(t, err)
		return res.Status
	}
	require.Equal(t, abci.ResponseProcessProposal_REJECT, process())
	a.decoder.remember(sha256.Sum256(forged), known, len(forged), form{testChain, 1})
	require.Equal(t, abci.ResponseProcessProposal_ACCEPT, process())
	require.Equal(t, []tx.Code{tx.CodeOK}, codes(runBlock(t, a, forged)))
}

// A block of 10,000 puts under a quota takes linear time. Summing up all keys for each put would
// take minutes.
func TestManyPutsUnderAQuota(t *testing.T) {
	a := startChain(t, &memoryStore{}, `{"admins": ["@root"], "grants": [{"grantee": "@alice", "prefix": "a/", "quota": 200000}]}`)
	operations := make([]tx.Operation, tx.MaxOperations)
	for i := range operations {
		operations[i] = put(fmt.Sprintf("a/%05d", i), "0123456789") // 20 bytes of leaf record
	}
	res := runBlock(t, a, sign(t, "alice", 0, operations...), sign(t, "alice", 1, put("a/", "x")), sign(t, "alice", 2, del("a/00000"), put("a/", "x")))
	require.Equal(t, []tx.Code{tx.CodeOK, tx.CodeQuota, tx.CodeOK}, codes(res))
}

// Vote extensions and the application's own mempool are not used; calls to them must do no harm.
func TestUnusedCalls(t *testing.T) {
	a := newTestApp(t, &memoryStore{})
	_, err := a.ExtendVote(context.Background(), &abci.RequestExtendVote{})
	require.NoError(t, err)
	verified, err := a.VerifyVoteExtension(ctx, &abci.RequestVerifyVoteExtension{})
	require.NoError(t, err)
	require.True(t, verified.IsAccepted())
}

// CometBFT finds room for the signatures of as many validators as max_validators admits. Without
// room it would panic.
func TestMaxValidatorsFitTheBlock(t *testing.T) {
	perValidator := cmttypes.MaxCommitBytes(1) - cmttypes.MaxCommitBytes(0)
	require.LessOrEqual(t, perValidator, int64(validatorBytes))
	for _, test := range []struct {
		blockBytes, evidenceBytes int64
		want                      uint32
	}{
		{-1, 1 << 20, 10_000}, {cmttypes.MaxBlockSizeBytes, 0, 10_000}, {22020096, 1 << 20, 6148}, {4 << 20, 1 << 20, 905}, {70_000, 1000, 1},
	} {
		params := cmttypes.DefaultConsensusParams()
		params.Block.MaxBytes, params.Evidence.MaxBytes = test.blockBytes, test.evidenceBytes
		proto := params.ToProto()
		n, err := maxValidators(&proto)
		require.NoError(t, err)
		require.Equal(t, test.want, n)
		if test.blockBytes > 0 {
			require.Positive(t, cmttypes.MaxDataBytes(test.blockBytes, test.evidenceBytes, int(n)))
		}
	}
}
