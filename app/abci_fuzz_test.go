package app

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app/result"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/tx"
)

// FuzzABCI plays the part of CometBFT. It reads any bytes as decisions about the next call, within
// the order that ABCI 2.0 allows ("CometBFT's expected behavior", spec/abci), with transactions
// that are valid, damaged or junk.
//
//	start    = info [init-chain] replay | offer apply… replay
//	height   = (prepare process | process)… [finalize] finalize commit recheck…
//	meantime = check-tx | query | info | list | load | offer | apply | a kill and another start
//
// Two replicas must agree on every proposal and every result. A third replaces one of them by a
// snapshot, some of whose chunks are damaged. State, codes, read values and validators must be
// those of a naive model.
func FuzzABCI(f *testing.F) {
	for seed := range uint64(16) {
		f.Add(randomDecisions(seed, 40+40*int(seed)))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, decisions []byte) {
		playABCI(t, decisions[:min(len(decisions), 4096)])
	})
}

// TestRandomABCI runs FuzzABCI on random bytes and checks that they reach every kind of call. Each
// count sums over enough decisions that it cannot be 0 by chance.
func TestRandomABCI(t *testing.T) {
	seed, total := seeds.New(t), map[string]int{}
	for i := range uint64(12) {
		for what, n := range playABCI(t, randomDecisions(seed<<8+i, 4096)) {
			total[what] += n
		}
	}
	t.Log(total)
	for _, what := range []string{"block", "again", "check", "recheck", "query", "restart", "replayed", "join", "refetched", "junk", "ok"} {
		require.NotZero(t, total[what], "the random calls never reached %q", what)
	}
}

func randomDecisions(seed uint64, n int) []byte {
	rng := rand.New(rand.NewPCG(seed, 9))
	decisions := make([]byte, n)
	for i := range decisions {
		decisions[i] = byte(rng.Uint32())
	}
	return decisions
}

// decisions reads bytes as choices; when they are used up, every choice is the first one.
type decisions []byte

func (d *decisions) choose(n int) int {
	if len(*d) == 0 {
		return 0
	}
	b := (*d)[0]
	*d = (*d)[1:]
	return int(b) % n
}

// junk returns up to n of the bytes unchanged.
func (d *decisions) junk(n int) []byte {
	n = min(d.choose(n+1), len(*d))
	b := bytes.Clone((*d)[:n])
	*d = (*d)[n:]
	return b
}

// source turns decisions into random numbers for the generator of transactions. Each number is a
// function of the next two bytes and of the number of bytes before them, so numbers keep differing
// when the bytes are used up.
type source struct {
	*decisions
	n uint64
}

func (s *source) Uint64() uint64 {
	s.n++
	var b [16]byte
	*s.decisions = (*s.decisions)[copy(b[:2], *s.decisions):]
	binary.BigEndian.PutUint64(b[8:], s.n)
	h := sha256.Sum256(b[:])
	return binary.BigEndian.Uint64(h[:])
}

const abciGenesis = `{"chunk_bytes": 150, "snapshot_interval": 2, "open": true, "admins": ["@root"], "grants": [
	{"grantee": "@alice", "prefix": "a"}, {"grantee": "@bob", "prefix": "ab", "quota": 100}, {"grantee": "*", "prefix": "c", "quota": 50}]}`

// abciWorld contains the state of CometBFT: the decided blocks, a mempool, and nodes.
type abciWorld struct {
	t          *testing.T
	decisions  *decisions
	generator  *generator
	model      *model
	validators *cmttypes.ValidatorSet
	blocks     []abciBlock // beginning with height 1
	replicas   []*replica
	mempool    [][]byte
	did        map[string]int
}

type abciBlock struct {
	last abci.CommitInfo
	txs  [][]byte
	res  *abci.ResponseFinalizeBlock
}

// replica is an application with its store and snapshots.
type replica struct {
	*App
	store     *memoryStore
	snapshots *statesync.Manager
}

func playABCI(t *testing.T, bytes []byte) map[string]int {
	d := decisions(bytes)
	w := &abciWorld{t: t, decisions: &d, model: &model{state: map[string]string{}, open: true}, did: map[string]int{}}
	w.generator = &generator{Rand: rand.New(&source{decisions: w.decisions}), t: t, names: []string{"alice", "bob", "carol", "root"}}
	w.validators = cmttypes.NewValidatorSet([]*cmttypes.Validator{cmttypes.NewValidator(key("v1").PubKey(), 10)})
	for range 2 {
		r := w.newReplica()
		w.replicas = append(w.replicas, r)
		defer func() { require.NoError(t, r.snapshots.Close()) }()
		w.replay(r)
	}
	for _, kv := range entries(t, w.replicas[0].block.version) {
		w.model.state[string(kv.Key)] = string(kv.Value)
	}
	for len(d) > 0 {
		w.step()
	}
	w.block() // a block must be possible whatever was decided
	for _, r := range w.replicas {
		checkState(t, r.App, w.model)
	}
	return w.did
}

func (w *abciWorld) step() {
	r := w.replicas[w.decisions.choose(len(w.replicas))]
	switch w.decisions.choose(16) {
	case 0, 1, 2, 3, 4:
		w.block()
	case 5, 6, 7:
		w.check(r)
	case 8, 9, 10:
		w.query(r)
	case 11:
		w.did["restart"]++
		w.restart(r)
	case 12, 13:
		w.join()
	default:
		w.did["junk"]++
		w.junk(r)
	}
}

func (w *abciWorld) newReplica() *replica {
	r := &replica{store: &memoryStore{lag: w.decisions.choose(4)}}
	w.open(r)
	return r
}

// open starts the application from the durable state.
func (w *abciWorld) open(r *replica) {
	r.App = newTestApp(w.t, r.store)
	r.snapshots = statesync.NewManager(statesync.Options{Target: &restoreInto{replica: r}, Interval: 2, Keep: 2, Workers: 1})
	r.SetSnapshots(onlySnapshots{r.snapshots})
}

// restart starts again after a kill.
func (w *abciWorld) restart(r *replica) {
	require.NoError(w.t, r.snapshots.Close())
	w.open(r)
	w.replay(r)
}

// onlySnapshots are the snapshots of a manager, without the query for them.
type onlySnapshots struct{ *statesync.Manager }

func (onlySnapshots) Offered() []SnapshotInfo { return nil }

// replay performs the handshake: blocks that were not durable are executed again, with the same
// results.
func (w *abciWorld) replay(r *replica) {
	info, err := r.Info(ctx, &abci.RequestInfo{})
	require.NoError(w.t, err)
	require.LessOrEqual(w.t, info.LastBlockHeight, int64(len(w.blocks)))
	if info.LastBlockHeight == 0 {
		_, err := r.InitChain(ctx, initRequest(abciGenesis))
		require.NoError(w.t, err)
	} else {
		require.Equal(w.t, w.blocks[info.LastBlockHeight-1].res.AppHash, info.LastBlockAppHash)
	}
	for _, block := range w.blocks[info.LastBlockHeight:] {
		require.Equal(w.t, block.res, runBlockAfter(w.t, r.App, block.last, block.txs...))
		w.did["replayed"]++
	}
}

// transactions returns valid, damaged and junk transactions, some of them from the mempool.
func (w *abciWorld) transactions() [][]byte {
	var txs [][]byte
	waiting := map[string]uint64{}
	for range w.decisions.choose(8) {
		switch w.decisions.choose(8) {
		case 0:
			if len(w.mempool) > 0 {
				txs = append(txs, w.mempool[w.decisions.choose(len(w.mempool))])
			}
		case 1:
			txs = append(txs, w.decisions.junk(40))
		case 2:
			raw := bytes.Clone(w.generator.transaction(w.model, waiting))
			raw[w.decisions.choose(len(raw))] ^= byte(1 + w.decisions.choose(255))
			txs = append(txs, raw)
		default:
			txs = append(txs, w.generator.transaction(w.model, waiting))
		}
	}
	return txs
}

// block plays one height: rounds, the execution of the decided block, the commit.
func (w *abciWorld) block() {
	height := int64(len(w.blocks)) + 1
	var block abciBlock
	if height > 1 {
		block.last = w.generator.lastCommit()
	}
	block.txs = w.round(height, block.last)
	for w.decisions.choose(4) == 3 {
		block.txs = w.round(height, block.last)
	}
	for i, r := range w.replicas {
		if w.decisions.choose(6) == 5 { // an execution without a commit
			finalize(w.t, r.App, w.transactions()...)
			w.did["again"]++
		}
		res := runBlockAfter(w.t, r.App, block.last, block.txs...)
		if i == 0 {
			block.res = res
		}
		require.Equal(w.t, block.res, res, "block %d", height)
	}
	w.blocks = append(w.blocks, block)
	w.did["block"]++
	w.follow(block)
	w.recheck()
}

// round plays one round, whose block is decided if it is the last. All validators must accept the
// proposal of a correct proposer, and must agree about a block with arbitrary contents. Such a
// block may be decided even if they reject it, by other validators.
func (w *abciWorld) round(height int64, last abci.CommitInfo) [][]byte {
	txs := w.transactions()
	honest := w.decisions.choose(3) != 2
	if honest {
		proposer := w.replicas[w.decisions.choose(len(w.replicas))]
		room := int64(1 << 20)
		if w.decisions.choose(4) == 3 {
			room = int64(w.decisions.choose(256))
		}
		prepared, err := proposer.PrepareProposal(ctx, &abci.RequestPrepareProposal{Txs: txs, MaxTxBytes: room, Height: height, LocalLastCommit: extended(last)})
		require.NoError(w.t, err)
		txs = prepared.Txs
		require.LessOrEqual(w.t, cmttypes.ComputeProtoSizeForTxs(cmttypes.ToTxs(txs)), room)
	}
	var verdicts []bool
	for _, r := range w.replicas {
		res, err := r.ProcessProposal(ctx, &abci.RequestProcessProposal{Txs: txs, Height: height})
		require.NoError(w.t, err)
		verdicts = append(verdicts, res.IsAccepted())
	}
	require.Equal(w.t, verdicts[0], verdicts[1])
	require.True(w.t, verdicts[0] || !honest, "a validator rejects what another one proposed")
	return txs
}

// follow compares a block with the model.
func (w *abciWorld) follow(block abciBlock) {
	w.model.begin(block.last, validatorNames...)
	for i, raw := range block.txs {
		var (
			code   tx.Code
			values []tx.OperationResult
		)
		if decoded, err := tx.Decode(raw, testChain); err != nil {
			code = refusal(err, tx.CodeMalformed).Code
		} else {
			code, values = w.model.execute(decoded)
		}
		r := block.res.TxResults[i]
		require.Equal(w.t, code, tx.Code(r.Code), "transaction %d of block %d: %s", i, len(w.blocks), r.Log)
		if code == 0 {
			w.did["ok"]++
		}
		var result tx.Result
		require.NoError(w.t, result.Unmarshal(r.Data))
		require.Len(w.t, result.Results, len(values))
		for n, value := range values {
			requireResult(w.t, value, result.Results[n])
		}
	}
	checkValidators(w.t, w.validators, block.res.ValidatorUpdates, w.model)
}

// check offers transactions to the mempool.
func (w *abciWorld) check(r *replica) {
	for _, raw := range w.transactions() {
		res, err := r.CheckTx(ctx, &abci.RequestCheckTx{Tx: raw})
		require.NoError(w.t, err)
		if res.Code == 0 {
			_, err := tx.Decode(raw, testChain)
			require.NoError(w.t, err)
			w.mempool = append(w.mempool, raw)
		}
		w.did["check"]++
	}
}

// recheck does what CometBFT does with a mempool after each block.
func (w *abciWorld) recheck() {
	var kept [][]byte
	for _, raw := range w.mempool[max(0, len(w.mempool)-20):] {
		good := true
		for _, r := range w.replicas {
			res, err := r.CheckTx(ctx, &abci.RequestCheckTx{Tx: raw, Type: abci.CheckTxType_Recheck})
			require.NoError(w.t, err)
			good = good && res.Code == 0
			w.did["recheck"]++
		}
		if good {
			kept = append(kept, raw)
		}
	}
	w.mempool = kept
}

// query queries a key that is likely present and compares the response with the model, or makes an
// arbitrary query.
func (w *abciWorld) query(r *replica) {
	w.did["query"]++
	if w.decisions.choose(2) == 0 || r.Height() == 0 {
		paths := []string{"", PathKey, PathRange, PathNonce, PathSnapshots, PathHeights, result.Path, "/nothing"}
		_, err := r.Query(ctx, &abci.RequestQuery{
			Path: paths[w.decisions.choose(len(paths))], Data: w.decisions.junk(40), Height: int64(w.decisions.choose(20)) - 2, Prove: w.decisions.choose(2) == 1,
		})
		require.NoError(w.t, err)
		return
	}
	k := w.generator.key()
	value, height, err := provedKey(r.App, []byte(k), 0)
	require.NoError(w.t, err)
	require.Equal(w.t, int64(len(w.blocks)), height)
	require.Equal(w.t, w.model.state[k], string(value))
}

// junk makes unexpected calls with the bytes of a peer. A snapshot that is refused must leave the
// state unchanged.
func (w *abciWorld) junk(r *replica) {
	switch w.decisions.choose(4) {
	case 0:
		res, err := r.OfferSnapshot(ctx, &abci.RequestOfferSnapshot{AppHash: w.decisions.junk(40), Snapshot: &abci.Snapshot{
			Height: uint64(w.decisions.choose(8)), Format: uint32(w.decisions.choose(3)), Chunks: uint32(w.decisions.choose(5)),
			Hash: w.decisions.junk(40), Metadata: w.decisions.junk(80),
		}})
		require.NoError(w.t, err)
		require.NotEqual(w.t, abci.ResponseOfferSnapshot_ACCEPT, res.Result)
	case 1:
		res, err := r.ApplySnapshotChunk(ctx, &abci.RequestApplySnapshotChunk{Index: uint32(w.decisions.choose(5)), Chunk: w.decisions.junk(80), Sender: "peer"})
		require.NoError(w.t, err)
		require.Equal(w.t, abci.ResponseApplySnapshotChunk_ABORT, res.Result)
	case 2:
		_, err := r.LoadSnapshotChunk(ctx, &abci.RequestLoadSnapshotChunk{
			Height: uint64(w.decisions.choose(20)), Format: uint32(w.decisions.choose(3)), Chunk: uint32(w.decisions.choose(5)),
		})
		require.NoError(w.t, err)
	default:
		info, err := r.Info(ctx, &abci.RequestInfo{})
		require.NoError(w.t, err)
		require.Equal(w.t, r.Height(), info.LastBlockHeight)
	}
}

// join replaces the last replica by a new node: it restores a snapshot of the first, with chunks
// damaged on the way, and then executes the blocks since.
func (w *abciWorld) join() {
	server, last := w.replicas[0], w.replicas[len(w.replicas)-1]
	list, err := server.ListSnapshots(ctx, &abci.RequestListSnapshots{})
	require.NoError(w.t, err)
	if len(list.Snapshots) == 0 {
		return
	}
	snapshot := list.Snapshots[w.decisions.choose(len(list.Snapshots))]
	joiner := w.newReplica()
	offered, err := joiner.OfferSnapshot(ctx, &abci.RequestOfferSnapshot{Snapshot: snapshot, AppHash: w.blocks[snapshot.Height-1].res.AppHash})
	require.NoError(w.t, err)
	require.Equal(w.t, abci.ResponseOfferSnapshot_ACCEPT, offered.Result)

	good := make([][]byte, snapshot.Chunks)
	var waiting []uint32
	for k := range snapshot.Chunks {
		loaded, err := server.LoadSnapshotChunk(ctx, &abci.RequestLoadSnapshotChunk{Height: snapshot.Height, Format: snapshot.Format, Chunk: k})
		require.NoError(w.t, err)
		good[k] = loaded.Chunk
		waiting = append(waiting, k)
	}
	for lies := 2 * len(good); joiner.Height() == 0; {
		require.NotEmpty(w.t, waiting, "all chunks were applied, and there is no state")
		k := waiting[0]
		waiting = waiting[1:]
		chunk, sender := good[k], "honest"
		if lies > 0 && w.decisions.choose(4) == 3 {
			lies--
			chunk, sender = w.damaged(chunk), "liar"
		}
		res, err := joiner.ApplySnapshotChunk(ctx, &abci.RequestApplySnapshotChunk{Index: k, Chunk: chunk, Sender: sender})
		require.NoError(w.t, err)
		require.Equal(w.t, abci.ResponseApplySnapshotChunk_ACCEPT, res.Result)
		require.NotContains(w.t, res.RejectSenders, "honest")
		w.did["refetched"] += len(res.RefetchChunks)
		waiting = append(waiting, res.RefetchChunks...)
	}
	require.EqualValues(w.t, snapshot.Height, joiner.Height())
	w.did["join"]++
	require.NoError(w.t, last.snapshots.Close())
	*last = *joiner
	w.replay(last)
}

// damaged returns a chunk that differs from the given one.
func (w *abciWorld) damaged(chunk []byte) []byte {
	at := min(w.decisions.choose(256), len(chunk)-1)
	switch w.decisions.choose(3) {
	case 0:
		return bytes.Clone(chunk[:at])
	case 1:
		return append(bytes.Clone(chunk), byte(at))
	default:
		chunk = bytes.Clone(chunk)
		chunk[at] ^= byte(1 + w.decisions.choose(255))
		return chunk
	}
}

// restoreInto is a statesync.Target for a replica's store.
type restoreInto struct {
	*replica
	mu struct {
		sync.Mutex
		manifest *avlstar.Manifest
		leaves   map[string][]byte
		heights  map[string]uint8
	}
}

func (r *restoreInto) Begin(_ int64, m *avlstar.Manifest) error {
	if r.Height() > 0 {
		return errors.New("there is a state")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.manifest, r.mu.leaves, r.mu.heights = m, map[string][]byte{}, map[string]uint8{}
	return nil
}

func (r *restoreInto) Write(k uint32, c *avlstar.Chunk) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	height := r.mu.manifest.Entries[k].BoundaryHeight // of the first leaf, in the whole tree
	for leaf := range c.Leaves() {
		r.mu.leaves[string(leaf.Key)], r.mu.heights[string(leaf.Key)] = bytes.Clone(leaf.Value), max(leaf.Height, height)
		height = 0
	}
	return nil
}

func (r *restoreInto) Commit(height int64, v *avlstar.Version) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.store
	s.mu.Lock()
	s.mu.leaves, s.mu.heights, s.mu.chunkBytes = r.mu.leaves, r.mu.heights, v.ChunkBytes()
	s.mu.height, s.mu.given, s.mu.last = height, height, v
	s.mu.Unlock()
	return r.Restored(height, v)
}

func (*restoreInto) Abort() error { return nil }
