package app

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/bubble"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/tx"
)

const witnessedState = `{"chunk_bytes": 150, "open": true, "admins": ["@root"], "grants": [
	{"grantee": "@alice", "prefix": "a"}, {"grantee": "@bob", "prefix": "ab", "quota": 900}, {"grantee": "*", "prefix": "c", "quota": 300}]}`

// prefill returns transactions that make a tree that is large enough for nodes to be missing.
func prefill(t *testing.T) (txs [][]byte) {
	for i := range 4 {
		var operations []tx.Operation
		for k := range 50 {
			operations = append(operations, put(fmt.Sprintf("a%s%d", []string{"", "b", "bc", "1"}[i], 7*k), fmt.Sprint("value ", k)))
		}
		txs = append(txs, sign(t, "alice", uint64(i), operations...))
	}
	return txs
}

// Random blocks with all operations, in full-state mode and on a tree in which most nodes are
// missing. Results, app hashes and query results are the same, whatever the source does.
func TestExecutionOnWitnesses(t *testing.T) {
	rnd := seeds.Rand(t)
	worlds, blocks := 8, 25
	if testing.Short() {
		worlds, blocks = 3, 12
	}
	for range worlds {
		world := rnd.Uint64()
		synctest.Test(t, func(t *testing.T) { executeOnWitnesses(t, rand.New(rand.NewPCG(world, 3)), blocks) })
	}
}

func executeOnWitnesses(t *testing.T, rnd *rand.Rand, blocks int) {
	source := newFakeSource(t, rand.New(rand.NewPCG(rnd.Uint64(), 4)))
	local := startChain(t, &memoryStore{}, witnessedState)
	keep := avlstar.Retention{Depth: rnd.IntN(4), Window: rnd.IntN(3)}
	store := &shardedStore{t: t}
	sharded := startSharded(t, store, source, keep, witnessedState)
	m := &model{state: map[string]string{}, open: true}
	g := &generator{Rand: rnd, t: t, names: []string{"alice", "bob", "carol", "root"}}
	txs := prefill(t)
	for i := range blocks {
		last := abci.CommitInfo{}
		if i > 0 {
			last = g.lastCommit()
			txs = nil
			for waiting := map[string]uint64{}; len(txs) < 12; {
				txs = append(txs, g.transaction(m, waiting))
			}
			if rnd.IntN(4) == 0 {
				txs = append(txs, deletion(t, g, m))
			}
		}
		if rnd.IntN(3) == 0 { // a proposal that is not decided
			processed(t, sharded, last, txs[:rnd.IntN(len(txs)+1)]...)
		}
		if rnd.IntN(2) == 0 {
			processed(t, sharded, last, txs...)
		}
		want := runBlockAfter(t, local, last, txs...)
		require.Equal(t, want, runBlockAfter(t, sharded, last, txs...), "block %d", i+1)
		source.has(local)
		compareAnswers(t, rnd, local, sharded)
		_, v := local.Latest()
		clear(m.state)
		for _, kv := range entries(t, v) {
			m.state[string(kv.Key)] = string(kv.Value)
		}
		v.Release()
		for _, raw := range txs[:min(len(txs), 3)] {
			_, err := sharded.CheckTx(ctx, &abci.RequestCheckTx{Tx: raw})
			require.NoError(t, err)
		}
		if rnd.IntN(6) == 0 { // a start with only the root's hash
			sharded.Stop()
			sharded = startSharded(t, store, source, keep, "")
		}
	}
	sharded.Stop()
	t.Logf("retention %+v: %d requests", keep, source.requests())
	require.NotZero(t, source.requests())
}

// deletion returns a transaction of alice that deletes many of her keys.
func deletion(t *testing.T, g *generator, m *model) []byte {
	var operations []tx.Operation
	for range 40 {
		operations = append(operations, del(fmt.Sprintf("a%s%d", g.pick("", "b", "bc", "1"), 7*g.IntN(50))))
	}
	return sign(t, "alice", m.u64(NonceKey(account("alice"))), operations...)
}

// compareAnswers makes the same queries of both, at heights that both keep.
func compareAnswers(t *testing.T, rnd *rand.Rand, local, sharded *App) {
	t.Helper()
	key := []byte(fmt.Sprintf("a%d", rnd.IntN(400)))
	r := &RangeRequest{Start: key, Limit: uint32(rnd.IntN(30)), KeysOnly: rnd.IntN(3) == 0, Reverse: rnd.IntN(3) == 0}
	if rnd.IntN(2) == 0 {
		r.End = []byte("ab2")
	}
	if string(r.End) <= string(key) {
		r.End = nil
	}
	height := max(local.Oldest(), sharded.Oldest())
	height += rnd.Int64N(local.Height() - height + 1)
	prove := rnd.IntN(2) == 0
	for path, data := range map[string][]byte{PathKey: key, PathRange: must(r.Marshal())} {
		req := &abci.RequestQuery{Path: path, Data: data, Height: height, Prove: prove}
		want, err := local.Query(ctx, req)
		require.NoError(t, err)
		got, err := sharded.Query(ctx, req)
		require.NoError(t, err)
		require.Equal(t, want, got, "%s %q at %d", path, key, height)
	}
}

// A proposal that cannot be executed in time is rejected, after a time that grows with each
// proposal at its height. The block is decided all the same by others, and FinalizeBlock waits for
// missing nodes.
func TestProposalsWaitForWitnesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, local, a := startBeside(t, avlstar.Retention{})
		defer a.Stop()
		block := [][]byte{sign(t, "alice", 4, put("a7", "new"), del("a14"), read("ab21"))}

		source.silence(true)
		for n := time.Duration(1); n <= 3; n++ {
			began := time.Now()
			require.False(t, processed(t, a, abci.CommitInfo{}, block...))
			require.Equal(t, n*DefaultWitnessTimeout, time.Since(began), "proposal %d", n)
		}
		source.silence(false)
		source.delayed(DefaultWitnessTimeout) // each request takes that long
		require.True(t, processed(t, a, abci.CommitInfo{}, block...))
		source.silence(true) // nothing is left to fetch
		want := runBlock(t, local, block...)
		began := time.Now()
		require.Equal(t, want, finalize(t, a, block...))
		require.Zero(t, time.Since(began))
		_, err := a.Commit(ctx, &abci.RequestCommit{})
		require.NoError(t, err)
		source.has(local)

		began = time.Now()
		require.False(t, processed(t, a, abci.CommitInfo{}, sign(t, "alice", 5, put("abc0", "x"))), "each height begins again")
		require.Equal(t, DefaultWitnessTimeout, time.Since(began))
	})
}

// A proposal that needs more bytes than it may fetch is rejected before all of them have arrived,
// and the limit grows with each proposal at its height; a decided block has no such limit.
func TestProposalsHaveAByteLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, local, a := startBeside(t, avlstar.Retention{})
		defer a.Stop()
		var operations []tx.Operation
		for k := range 50 {
			operations = append(operations, put(fmt.Sprintf("a%d", 7*k), "new"), put(fmt.Sprintf("ab%d", 7*k), "new"))
		}
		block := [][]byte{sign(t, "alice", 4, operations...)}
		a.options.WitnessBytes = 1500
		before, rounds := source.took(), 1
		for ; !processed(t, a, abci.CommitInfo{}, block...); rounds++ {
			const oneMore = 1000 // it exceeds the limit
			require.LessOrEqual(t, source.took()-before, rounds*a.options.WitnessBytes+oneMore)
			before = source.took()
		}
		require.Greater(t, rounds, 2)
		require.Equal(t, runBlock(t, local, block...), runBlock(t, a, block...))
		source.has(local)

		// A block that was decided must not be refused.
		a.options.WitnessBytes = 1
		block = [][]byte{sign(t, "alice", 5, put("abc7", "new"), put("a17", "new"))}
		require.Equal(t, runBlock(t, local, block...), runBlock(t, a, block...))
	})
}

// The bytes that a decided block fetches have a limit too: above it the block fails, and nothing
// else.
func TestDecidedBlocksHaveAByteLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, local, a := startBeside(t, avlstar.Retention{})
		defer a.Stop()
		var operations []tx.Operation
		for k := range 50 {
			operations = append(operations, put(fmt.Sprintf("a%d", 7*k), "new"))
		}
		large := [][]byte{sign(t, "alice", 4, operations...)}
		const limit, oneMore = 1500, 1000 // it exceeds the limit
		a.options.BlockWitnessBytes = limit
		req := &abci.RequestFinalizeBlock{Height: 2, Txs: large}
		for range 2 {
			before := source.took()
			_, err := a.FinalizeBlock(ctx, req)
			require.ErrorIs(t, err, ErrBlockWitnesses)
			require.ErrorContains(t, err, "join with a new node in local mode")
			require.LessOrEqual(t, source.took()-before, limit+oneMore)
			require.Equal(t, int64(1), a.Height())
		}

		// The bytes that a proposal fetched do not count: it has a limit of its own.
		require.True(t, processed(t, a, abci.CommitInfo{}, large...))
		require.Equal(t, runBlock(t, local, large...), runBlock(t, a, large...))
		source.has(local)
		small := sign(t, "alice", 5, put("abc7", "new"))
		require.Equal(t, runBlock(t, local, small), runBlock(t, a, small))
	})
}

// A block brings only the values that it returns, whatever else its transactions write over,
// delete, compare, or read and then fail. So one account with much data cannot make blocks that a
// machine has no memory for.
func TestBlocksBringOnlyValuesThatTheyReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys, length = 60, 100_000
		value := func(k int) string { return strings.Repeat(string(rune('a'+k%26)), length) }
		name := func(k int) string { return fmt.Sprintf("az%d", k) }
		source := newFakeSource(t, nil)
		local := startChain(t, &memoryStore{}, witnessedState)
		runBlock(t, local, prefill(t)...)
		nonce := uint64(4)
		for from := 0; from < keys; from += 4 {
			var operations []tx.Operation
			for k := from; k < from+4; k++ {
				operations = append(operations, put(name(k), value(k)))
			}
			runBlock(t, local, sign(t, "alice", nonce, operations...))
			nonce++
		}
		// A quota needs the lengths of the values at both ends of its prefix.
		runBlock(t, local, sign(t, "root", 0, grantOp(account("carol"), "q", 1<<30)))
		runBlock(t, local, sign(t, "carol", 0, put("q1", value(1)), put("q9", value(9))))
		source.has(local)
		a := startBare(t, local, source, avlstar.Retention{})
		defer a.Stop()
		one := func(operations ...tx.Operation) (raw []byte) {
			raw = sign(t, "alice", nonce, operations...)
			nonce++
			return raw
		}
		var over, gone, fails []tx.Operation
		for k := range 10 {
			// Every second one changes nothing.
			over = append(over, put(name(k), "new"), put(name(10+k), value(10+k)))
			gone = append(gone, del(name(20+k)), cas(name(30+k), value(30+k), "new"))
			fails = append(fails, read(name(40+k)))
		}
		fails = append(fails, cas(name(50), "another", "new"))
		block := [][]byte{
			one(over...), one(gone...), one(fails...), one(fails...),
			one(tx.Operation{Op: &tx.Operation_DeleteRange{DeleteRange: &tx.DeleteRange{Start: []byte(name(51)), End: []byte(name(54)), Limit: 3}}}),
			one(tx.Operation{Op: &tx.Operation_Txn{Txn: &tx.Txn{
				Compares: []tx.Compare{{Key: []byte(name(55)), Value: []byte(value(55))}},
				Success:  []tx.Operation{read(name(56)), {Op: &tx.Operation_ReadRange{ReadRange: &tx.ReadRange{Start: []byte(name(57)), End: []byte(name(58)), Limit: 1}}}},
			}}}),
			one(read(name(59)), put(name(59), "read before")),
			sign(t, "carol", 1, put("q5", "more than before")),
		}
		want := runBlock(t, local, block...)
		require.Equal(t, uint32(tx.CodeCompareFailed), want.TxResults[2].Code)
		require.Zero(t, want.TxResults[5].Code, want.TxResults[5].Log)
		require.Greater(t, len(want.TxResults[5].Data), 2*length)
		require.Greater(t, len(want.TxResults[6].Data), length)
		before := source.took()
		require.Equal(t, want, runBlock(t, a, block...))
		require.Less(t, source.took()-before, 3*length+length/2, "three values are returned")
		source.has(local)
	})
}

// FinalizeBlock waits until its context or Stop ends, and leaves the state unchanged.
func TestFinalizeBlockWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, local, a := startBeside(t, avlstar.Retention{})
		raw := sign(t, "alice", 4, put("a7", "new"))
		req := &abci.RequestFinalizeBlock{Height: 2, Txs: [][]byte{raw}}

		source.silence(true)
		limited, cancel := context.WithTimeout(ctx, time.Hour)
		defer cancel()
		_, err := a.FinalizeBlock(limited, req)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "missing")

		type result struct {
			res *abci.ResponseFinalizeBlock
			err error
		}
		ended := make(chan result, 1)
		wait := func() {
			res, err := a.FinalizeBlock(ctx, req)
			ended <- result{res, err}
		}
		source.silence(false)
		source.delayed(time.Hour)
		go wait()
		bubble.Sleep(time.Minute)
		require.Empty(t, ended)
		got := <-ended
		require.NoError(t, got.err)
		require.Equal(t, runBlock(t, local, raw), got.res)

		_, err = a.Commit(ctx, &abci.RequestCommit{})
		require.NoError(t, err)
		req = &abci.RequestFinalizeBlock{Height: 3, Txs: [][]byte{sign(t, "alice", 5, put("abc7", "new"))}}
		go wait()
		synctest.Wait()
		require.Empty(t, ended)
		a.Stop()
		got = <-ended
		require.ErrorIs(t, got.err, context.Canceled)
		require.Equal(t, int64(2), a.Height())
	})
}

// emptyHanded is a Source that returns nothing, while something else happens.
type emptyHanded struct{ meanwhile func(avlstar.Below) }

func (s emptyHanded) Fetch(_ context.Context, _ int64, _ []avlstar.Want, below avlstar.Below) ([]*avlstar.Multiproof, error) {
	s.meanwhile(below)
	return nil, nil
}

// A request asks for no more bytes than the limit still allows.
func TestRequestsAskForTheRest(t *testing.T) {
	a := startChain(t, &memoryStore{}, witnessedState)
	runBlock(t, a)
	_, now := a.Latest()
	p, err := avlstar.NewPartial(now.Commitment())
	now.Release()
	require.NoError(t, err)
	v := p.Version()
	defer v.Release()
	var most []int
	a.options.Source = emptyHanded{func(b avlstar.Below) { most = append(most, b.MaxBytes) }}
	f := &fetcher{app: a, call: forProposal, most: 100, version: func() *avlstar.Version { return v }}
	for _, f.bytes = range []int{0, 60, 99} {
		_, _, err := f.once(ctx, nil, nil)
		require.NoError(t, err)
	}
	require.Equal(t, []int{100, 40, 1}, most)
	f.bytes = 100
	_, _, err = f.once(ctx, nil, nil)
	require.ErrorIs(t, err, errTooMuch)
}

// A request for a later block may fetch the nodes that Apply found missing. A call that waits for
// them runs again, although its own requests return nothing new.
func TestAnotherRequestBroughtIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local := startChain(t, &memoryStore{}, witnessedState)
		runBlock(t, local, prefill(t)...)
		_, now := local.Latest()
		defer now.Release()
		p, err := now.Prune(func(avlstar.Subtree) bool { return false })
		require.NoError(t, err)
		defer p.Release()
		local.options.Source = emptyHanded{func(avlstar.Below) { now = p.Version() }}
		f := &fetcher{app: local, call: forBlock, version: func() *avlstar.Version { return now }}
		limited, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		require.NoError(t, f.bring(limited, &needs{wants: []avlstar.Want{{}}, held: map[avlstar.Hash]avlstar.Span{{1}: {}}}))
	})
}

// This proposer leaves out transactions with missing nodes, and those that depend on them. It has
// the nodes for the next height.
func TestProposerLeavesOutWhatItLacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, local, a := startBeside(t, avlstar.Retention{Depth: 2, Window: 100})
		defer a.Stop()
		// In memory after this block: the rights of alice, a0 and a7.
		first := sign(t, "alice", 4, put("a0", "x"), put("a7", "y"))
		require.Equal(t, runBlock(t, local, first), runBlock(t, a, first))
		source.has(local)
		txs := [][]byte{
			sign(t, "alice", 5, put("a0", "z")),
			sign(t, "alice", 6, put("abc343", "z"), del("abc84"), del("abc91")),
			sign(t, "alice", 7, put("a7", "z")), // its nonce follows
			sign(t, "root", 0, grantOp(account("carol"), "x", 0)),
		}
		propose := func() [][]byte {
			began := time.Now()
			res, err := a.PrepareProposal(ctx, &abci.RequestPrepareProposal{Height: a.Height() + 1, Txs: txs, MaxTxBytes: 1 << 20})
			require.NoError(t, err)
			require.Zero(t, time.Since(began))
			return res.Txs
		}
		source.delayed(time.Millisecond)
		require.Equal(t, txs[:1], propose())
		bubble.Sleep(time.Second)
		for range 3 { // in a chain of reads, each requests the next
			propose()
			bubble.Sleep(time.Second)
		}
		require.Equal(t, txs, propose())
		require.Equal(t, runBlock(t, local, txs...), runBlock(t, a, txs...))
	})
}

// A proposer leaves out a transaction that returns a long value which is missing, too.
func TestProposerLeavesOutMissingValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newFakeSource(t, nil)
		local := startChain(t, &memoryStore{}, witnessedState)
		runBlock(t, local, append(prefill(t), sign(t, "alice", 4, put("az", strings.Repeat("long", 1000))))...)
		source.has(local)
		a := startBare(t, local, source, avlstar.Retention{Window: 100})
		defer a.Stop()
		first := sign(t, "alice", 5, put("az1", "next to it"))
		require.Equal(t, runBlock(t, local, first), runBlock(t, a, first))
		source.has(local)
		txs := [][]byte{sign(t, "alice", 6, put("az", "short"), read("az"), del("az")), sign(t, "alice", 6, read("az"))}
		propose := func() [][]byte {
			res, err := a.PrepareProposal(ctx, &abci.RequestPrepareProposal{Height: a.Height() + 1, Txs: txs[1:], MaxTxBytes: 1 << 20})
			require.NoError(t, err)
			return res.Txs
		}
		require.Empty(t, propose())
		for range 3 {
			bubble.Sleep(time.Second)
			propose()
		}
		require.Equal(t, txs[1:], propose())
		require.Equal(t, runBlock(t, local, txs...), runBlock(t, a, txs...))
	})
}

// A transaction whose nodes are never all in memory when the node proposes is proposed at its third
// turn: the validators fetch what is missing. Other rounds of a height do not count as turns.
func TestOverdueTransactionIsProposed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, local, a := startBeside(t, avlstar.Retention{Depth: 1, Window: 3})
		defer a.Stop()
		source.delayed(100 * time.Millisecond)
		propose := func(txs ...[]byte) (proposed [][]byte) {
			for round := range 3 {
				res, err := a.PrepareProposal(ctx, &abci.RequestPrepareProposal{Height: a.Height() + 1, Txs: txs, MaxTxBytes: 1 << 20})
				require.NoError(t, err)
				if round == 0 {
					proposed = res.Txs
				} else {
					require.Empty(t, res.Txs)
				}
			}
			bubble.Sleep(time.Second) // what was missing arrives
			return proposed
		}
		blocks := func() {
			for range 2 {
				require.Equal(t, runBlock(t, local), runBlock(t, a))
				source.has(local)
			}
		}
		// Each turn, the nodes of one key arrive, and those of the other one leave.
		require.Empty(t, propose(sign(t, "alice", 4, put("a7", "x"))))
		blocks()
		both, other := sign(t, "alice", 4, put("a7", "x"), put("ab7", "y")), sign(t, "alice", 4, put("a7", "x"), put("ab7", "z"))
		for range overdue {
			require.Empty(t, propose(both, other))
			blocks()
		}
		require.False(t, processed(t, a, abci.CommitInfo{}, []byte("no transaction")), "the first proposal of a height")
		require.Equal(t, [][]byte{both}, propose(both, other), "one at a time")
		// It was in vain, so none is proposed for a while.
		blocks()
		for range overdue {
			require.Empty(t, propose(both, other))
			blocks()
		}
		require.Empty(t, propose(both, other))
		require.True(t, processed(t, a, abci.CommitInfo{}, both))
		require.Equal(t, runBlock(t, local, both), runBlock(t, a, both))
	})
}

// The nodes of a transaction that is left out of blocks are in memory at each node when its turn
// comes, although nodes leave after a few blocks.
func TestRecheckKeepsWhatIsLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, local, a := startBeside(t, avlstar.Retention{Depth: 1, Window: 3})
		defer a.Stop()
		raw := sign(t, "alice", 4, put("a7", "x"), put("ab7", "y"), put("abc7", "z"))
		check := func(as abci.CheckTxType) {
			res, err := a.CheckTx(ctx, &abci.RequestCheckTx{Tx: raw, Type: as})
			require.NoError(t, err)
			require.Zero(t, res.Code, res.Log)
			bubble.Sleep(time.Second)
		}
		check(abci.CheckTxType_New)
		for range 10 {
			require.Equal(t, runBlock(t, local), runBlock(t, a))
			source.has(local)
			check(abci.CheckTxType_Recheck)
		}
		res, err := a.PrepareProposal(ctx, &abci.RequestPrepareProposal{Height: a.Height() + 1, Txs: [][]byte{raw}, MaxTxBytes: 1 << 20})
		require.NoError(t, err)
		require.Equal(t, [][]byte{raw}, res.Txs)
	})
}

// Only transactions that fit into a block with those before them are left out of it.
func TestLeftOut(t *testing.T) {
	var c checker
	id := func(i byte) [sha256.Size]byte { return [sha256.Size]byte{i} }
	for i, want := range []bool{false, true, true} {
		c.reset(nil, nil, nil, true, nil)
		require.Equal(t, want, c.leftOut(id(1), maxFront/2, maxFrontKeys/2), "block %d", i)
		require.Equal(t, want, c.leftOut(id(2), maxFront/2, maxFrontKeys/2), "block %d", i)
		require.False(t, c.leftOut(id(3), 1, 0), "block %d", i)
	}
	c.reset(nil, nil, nil, true, nil)
	require.True(t, c.leftOut(id(2), 1, maxCost))
	require.False(t, c.leftOut(id(1), 1, 1))
	c.reset(nil, nil, nil, true, nil)
	require.False(t, c.leftOut(id(1), 1, 1), "it came later in the last block")
}

// A transaction whose nodes do not arrive is not proposed, however often it is left out.
func TestOverdueTransactionOfASilentRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, local, a := startBeside(t, avlstar.Retention{Depth: 1, Window: 3})
		defer a.Stop()
		source.silence(true)
		for range 4 * overdue {
			res, err := a.PrepareProposal(ctx, &abci.RequestPrepareProposal{Height: a.Height() + 1, Txs: [][]byte{sign(t, "alice", 4, put("a7", "x"))}, MaxTxBytes: 1 << 20})
			require.NoError(t, err)
			require.Empty(t, res.Txs)
			require.Equal(t, runBlock(t, local), runBlock(t, a))
		}
	})
}

// The reads of a transaction that a proposer leaves out do not count against the block's budget.
func TestLeftOutReadsAreNotCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, local, a := startBeside(t, avlstar.Retention{Window: 100})
		defer a.Stop()
		// In memory after this block: a long value, and the rights of both accounts.
		first := [][]byte{sign(t, "alice", 4, put("az", strings.Repeat("v", ReadBudgetBytes/3))), sign(t, "bob", 0, put("aby", "x"))}
		require.Equal(t, runBlock(t, local, first...), runBlock(t, a, first...))
		source.has(local)
		lacks := sign(t, "bob", 1, read("az"), read("az"), read("az"), read("abc343"))
		has := sign(t, "alice", 5, read("az"))
		res, err := a.PrepareProposal(ctx, &abci.RequestPrepareProposal{Height: a.Height() + 1, Txs: [][]byte{lacks, has}, MaxTxBytes: 1 << 20})
		require.NoError(t, err)
		require.Equal(t, [][]byte{has}, res.Txs)
	})
}

// The result of ProcessProposal is used only for the same block: the signers of the last block
// determine whether validators may be added.
func TestProposalOfOtherSigners(t *testing.T) {
	absent := abci.CommitInfo{Votes: []abci.VoteInfo{vote("v1", cmtproto.BlockIDFlagAbsent)}}
	local := startChain(t, &memoryStore{}, witnessedState)
	a := startSharded(t, &shardedStore{t: t}, newFakeSource(t, nil), avlstar.Retention{}, witnessedState)
	defer a.Stop()
	runBlock(t, local)
	runBlock(t, a)
	raw := sign(t, "root", 0, validatorOp(account("v2"), 100))
	require.True(t, processed(t, a, signedBy("v1"), raw))
	want := runBlockAfter(t, local, absent, raw)
	require.Equal(t, []tx.Code{tx.CodeOK}, codes(want))
	require.Equal(t, want, runBlockAfter(t, a, absent, raw))
	require.True(t, processed(t, a, absent))
	require.Equal(t, runBlock(t, local), runBlock(t, a), "no signers are known")
}

// The missing nodes of a transaction are searched for outside of the block: its operations are not
// those that are read ahead.
func TestExploringReadsNothingAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newFakeSource(t, rand.New(rand.NewPCG(1, 4)))
		local := startChain(t, &memoryStore{}, witnessedState)
		store := &shardedStore{t: t}
		keep := avlstar.Retention{Window: 8}
		sharded := startSharded(t, store, source, keep, witnessedState)
		both := func(txs ...[]byte) {
			t.Helper()
			want := runBlock(t, local, txs...)
			require.Equal(t, want, runBlock(t, sharded, txs...))
			source.has(local)
		}
		both(prefill(t)...)
		var seen [][]byte
		for i := range 60 {
			seen = append(seen, sign(t, fmt.Sprint("user ", i), 0, read("a0")))
		}
		both(seen...)
		sharded.Stop()
		sharded = startSharded(t, store, source, keep, "")
		var many []tx.Operation
		for i := range 126 {
			many = append(many, read(fmt.Sprintf("a%d", 7*(i%50))))
		}
		both(sign(t, "alice", 4, many...))
		both(sign(t, "alice", 5, many...), sign(t, "user 7", 1, tx.NewTxn([]tx.Compare{{Key: []byte("a0"), Present: true}}, nil, nil)))
		sharded.Stop()
	})
}

// A proposer requests a range as a whole. Its turn comes only once in many blocks, and the nodes
// would not stay in memory until its next turns.
func TestProposerAsksForWholeRanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newFakeSource(t, rand.New(rand.NewPCG(1, 4)))
		local := startChain(t, &memoryStore{}, witnessedState)
		store := &shardedStore{t: t}
		keep := avlstar.Retention{Window: 100}
		a := startSharded(t, store, source, keep, witnessedState)
		var large []tx.Operation
		for i := range 10 {
			large = append(large, put(fmt.Sprintf("abig%d", i), strings.Repeat("x", 100<<10)))
		}
		first := append(prefill(t), sign(t, "alice", 4, large...))
		require.Equal(t, runBlock(t, local, first...), runBlock(t, a, first...))
		source.has(local)
		a.Stop()
		a = startSharded(t, store, source, keep, "")
		defer a.Stop()
		txs := [][]byte{sign(t, "bob", 0, tx.NewReadRange([]byte("abig"), []byte("abih"), 10))}
		turns := 0
		for proposed := [][]byte(nil); len(proposed) == 0; turns++ {
			res, err := a.PrepareProposal(ctx, &abci.RequestPrepareProposal{Height: a.Height() + 1, Txs: txs, MaxTxBytes: 1 << 20})
			require.NoError(t, err)
			proposed = res.Txs
			bubble.Sleep(time.Second)
		}
		require.LessOrEqual(t, turns, 5)
	})
}

// Calls that wait for nodes are counted with the time, and others with 0.
func TestWaitsAreMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, local, a := startBeside(t, avlstar.Retention{})
		defer a.Stop()
		registry := prometheus.NewRegistry()
		a.options.Metrics = NewMetrics(registry)
		source.delayed(80 * time.Millisecond)
		raw := sign(t, "alice", 4, put("a7", "x"))
		res, err := a.PrepareProposal(ctx, &abci.RequestPrepareProposal{Height: a.Height() + 1, Txs: [][]byte{raw}, MaxTxBytes: 1 << 20})
		require.NoError(t, err)
		require.Empty(t, res.Txs)
		bubble.Sleep(time.Second)
		raw = sign(t, "alice", 4, put("ab7", "x"))
		began := time.Now()
		require.True(t, processed(t, a, abci.CommitInfo{}, raw))
		waited := time.Since(began)
		require.Positive(t, waited)
		require.Equal(t, finalize(t, local, raw), finalize(t, a, raw))
		families, err := registry.Gather()
		require.NoError(t, err)
		got := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				name := f.GetName()
				for _, label := range m.GetLabel() {
					name += " " + label.GetValue()
				}
				got[name] = m.GetCounter().GetValue() + m.GetHistogram().GetSampleSum()
				if b := m.GetHistogram().GetBucket(); len(b) > 0 && b[0].GetUpperBound() == 0 {
					got[name+" unwaited"] = float64(b[0].GetCumulativeCount())
				}
			}
		}
		const prefix = "starling_app_witness_"
		require.InDelta(t, waited.Seconds(), got[prefix+"wait_seconds process_proposal"], 1e-9)
		require.Zero(t, got[prefix+"wait_seconds process_proposal unwaited"])
		require.Zero(t, got[prefix+"wait_seconds finalize_block"])
		require.Equal(t, 1.0, got[prefix+"wait_seconds finalize_block unwaited"])
		require.Equal(t, 1.0, got[prefix+"left_out_total"])
		require.Positive(t, got[prefix+"bytes_total prefetch"])
		require.Positive(t, got[prefix+"bytes_total process_proposal"])
		require.Zero(t, got[prefix+"bytes_total finalize_block"])

		commit := func() {
			_, err := a.Commit(ctx, &abci.RequestCommit{})
			require.NoError(t, err)
		}
		largest := int(got[prefix+"bytes_total process_proposal"])
		require.Equal(t, largest, a.BlockWitnessBytes())
		commit()
		require.Equal(t, largest, a.BlockWitnessBytes())
		finalize(t, a)
		commit()
		require.Zero(t, a.BlockWitnessBytes(), "only that of the last block counts")
	})
}
