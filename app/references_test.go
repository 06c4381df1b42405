package app

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app/result"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/tx"
)

// versionsInUse finalizes a block with change, which frees versions that were released before, and
// counts the versions in use, without that of the block.
func versionsInUse(t testing.TB, a *App, change []byte) int {
	t.Helper()
	finalize(t, a, change)
	require.NotSame(t, a.block.version, a.block.pending.version, "nothing changed")
	return a.block.pending.version.Memory().Versions - 1
}

func released(v *avlstar.Version) bool {
	if v.TryRetain() {
		v.Release()
		return false
	}
	return true
}

// Whatever is queried, and however often a block is executed again: at the end only the versions of
// the last pruning_keep_recent blocks are in use.
func TestNoReferenceLeaks(t *testing.T) {
	for _, keep := range []int{1, 3} {
		a := newTestApp(t, &memoryStore{})
		a.options.KeepRecent = keep
		var all []*avlstar.Version // without references
		for range 3 {
			_, err := a.InitChain(ctx, initRequest(aliceOwnsA))
			require.NoError(t, err)
			finalize(t, a, sign(t, "alice", 0, put("a", "given up")))
			all = append(all, a.block.version, a.block.pending.version)
		}
		for height := range uint64(12) {
			before := a.block.version
			finalize(t, a, sign(t, "alice", height, put("a", "of another round")))
			finalize(t, a)
			finalize(t, a, sign(t, "alice", height, put(fmt.Sprintf("a%d", height), "of another round")))
			all = append(all, a.block.pending.version)
			block := sign(t, "alice", height, put("a", fmt.Sprint(height)), put(fmt.Sprintf("a%d", height%5), fmt.Sprint(height)), read("a1"))
			if height%4 == 3 {
				block = nil // the block changes nothing, so it has no version of its own
			}
			runBlock(t, a, block)
			if block != nil {
				all = append(all, before)
			} else {
				require.Same(t, before, a.block.version)
				runBlock(t, a, sign(t, "alice", height, del("a1")))
			}
			askEverything(t, a)
		}
		runBlock(t, a, sign(t, "alice", 12, put("a", "12")))
		runBlock(t, a, sign(t, "alice", 13, put("a", "13")))
		require.Equal(t, keep, versionsInUse(t, a, sign(t, "alice", 14, put("a", "x"))), "pruning_keep_recent %d", keep)
		for i, v := range all {
			require.True(t, released(v), "version %d", i)
		}
		_, err := a.InitChain(ctx, initRequest(aliceOwnsA))
		require.ErrorContains(t, err, "the state is at height")

		last := a.block.version
		a.options.Store.(*memoryStore).mu.failCommits = errors.New("no space left on device")
		given := a.block.pending.version
		require.Error(t, commitBlock(a))
		require.True(t, released(given), "a block that cannot be saved")
		require.False(t, released(last))
		a.Forget()
		require.True(t, released(last))
		require.Zero(t, a.Height())
	}
}

// askEverything makes every call that reads, for every kept height and some others.
func askEverything(t *testing.T, a *App) {
	t.Helper()
	var request RangeRequest
	all, err := request.Marshal()
	require.NoError(t, err)
	for _, path := range []string{PathKey, PathRange, PathNonce, PathSnapshots, PathHeights, result.Path, "", "/nothing"} {
		for _, data := range [][]byte{nil, all, []byte("a"), account("alice")} {
			for height := range a.Height() + 2 {
				for _, prove := range []bool{false, true} {
					_, err := a.Query(ctx, &abci.RequestQuery{Path: path, Data: data, Height: height, Prove: prove})
					require.NoError(t, err)
				}
			}
		}
	}
	for _, raw := range [][]byte{nil, []byte("k=v"), sign(t, "alice", 0, put("a", "1")), sign(t, "alice", 99, put("b", "1")), sign(t, "bob", 0, put("b", "1"))} {
		for _, kind := range []abci.CheckTxType{abci.CheckTxType_New, abci.CheckTxType_Recheck} {
			_, err := a.CheckTx(ctx, &abci.RequestCheckTx{Tx: raw, Type: kind})
			require.NoError(t, err)
		}
		_, err := a.PrepareProposal(ctx, &abci.RequestPrepareProposal{Txs: [][]byte{raw}, MaxTxBytes: 1 << 20})
		require.NoError(t, err)
		_, err = a.ProcessProposal(ctx, &abci.RequestProcessProposal{Txs: [][]byte{raw}})
		require.NoError(t, err)
	}
	_, err = a.Info(ctx, &abci.RequestInfo{})
	require.NoError(t, err)
}

// A state that a restart loads, or a snapshot restores, belongs only to the application after it
// was handed over.
func TestHandedOverVersionsAreReleased(t *testing.T) {
	store := &memoryStore{}
	first := startChain(t, store, aliceOwnsA)
	runBlock(t, first, sign(t, "alice", 0, put("a", "1")))
	restored := copyOf(t, latest(t, first))

	a, err := New(Options{Store: store})
	require.NoError(t, err)
	a.SetSnapshots(&fakeSnapshots{})
	loaded := a.block.version
	runBlock(t, a, sign(t, "alice", 1, put("a", "2")))
	require.True(t, released(loaded))
	require.Equal(t, 1, versionsInUse(t, a, sign(t, "alice", 2, put("a", "3"))))

	other := newTestApp(t, &memoryStore{})
	_, err = other.InitChain(ctx, initRequest(aliceOwnsA)) // a genesis state is replaced too
	require.NoError(t, err)
	genesis := other.block.version
	require.NoError(t, other.Restored(7, restored))
	require.True(t, released(genesis))
	restored.Release()
	require.False(t, released(restored))
	other.Forget()
	require.True(t, released(restored))

	_, err = New(Options{Store: store, ChainID: "another"})
	require.ErrorIs(t, err, ErrOtherChain)
	require.True(t, released(store.mu.last), "a state that is refused")
}

// Readers that never finish, in the middle of an old state: blocks are executed all the same, and
// the data that these readers see does not change. The memory is freed when they are done.
func TestSlowReadersDelayNoBlock(t *testing.T) {
	a := startChain(t, &memoryStore{}, aliceOwnsA)
	a.options.KeepRecent = 1
	operations := func(value string) (all []tx.Operation) {
		for i := range 200 {
			all = append(all, put(fmt.Sprintf("a%03d", i), value))
		}
		return all
	}
	runBlock(t, a, sign(t, "alice", 0, operations("old")...))
	at, refused := a.acquire(0)
	require.Nil(t, refused)
	checked, _ := a.check.state() // as CheckTx does for a transaction that never ends
	require.Same(t, at.version, checked)

	began, goOn, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() { // as readRange and ProveRange do
		keys := 0
		for kv, err := range at.version.Ascend([]byte("a"), nil) {
			if err != nil {
				done <- err
				return
			}
			if keys++; keys == 100 {
				close(began)
				<-goOn
			}
			if want := fmt.Sprintf("a%03d", keys-1); string(kv.Key) != want || string(kv.Value) != "old" {
				done <- fmt.Errorf("%q = %q, want %q = old", kv.Key, kv.Value, want)
				return
			}
		}
		at.version.Release()
		done <- nil
	}()
	<-began
	const blocks = 20
	for i := range uint64(blocks) { // it would never return if it waited for the reader
		runBlock(t, a, sign(t, "alice", i+1, operations(fmt.Sprint(i))...))
	}
	require.Equal(t, 2, versionsInUse(t, a, sign(t, "alice", blocks+1, put("a", "x"))), "the reader's and the last one")
	_, err := checked.Chunk(0)
	require.NoError(t, err)
	held := a.block.pending.version.Memory()
	close(goOn)
	require.NoError(t, <-done)
	checked.Release()
	require.True(t, released(checked))
	require.Equal(t, 1, versionsInUse(t, a, sign(t, "alice", blocks+1, put("a", "x"))))
	after := a.block.pending.version.Memory()
	require.Less(t, after.Leaves, held.Leaves-150)
	require.Less(t, after.Held, held.Held-150)
}

// A reader that found a version just before it was released looks again.
func TestReaderThatComesTooLate(t *testing.T) {
	a := startChain(t, &memoryStore{}, aliceOwnsA)
	a.options.KeepRecent = 1
	runBlock(t, a, sign(t, "alice", 0, put("a", "1")))
	found := a.published.Load()
	runBlock(t, a, sign(t, "alice", 1, put("a", "2")))
	require.True(t, released(found.recent[0].version))
	now := a.published.Swap(found)
	answer := make(chan *abci.ResponseQuery)
	go func() {
		res, _ := a.Query(ctx, &abci.RequestQuery{Data: []byte("a")})
		answer <- res
	}()
	for range 1000 {
		runtime.Gosched() // the reader tries, and fails
	}
	a.published.Store(now)
	res := <-answer
	require.Equal(t, "2", string(res.Value))
	require.Equal(t, int64(2), res.Height)
}

// Blocks that overwrite the same keys take no more memory, however many blocks there are.
func TestMemoryStaysAsItIs(t *testing.T) {
	a := startChain(t, &memoryStore{}, aliceOwnsA)
	var operations []tx.Operation
	for i := range 100 {
		operations = append(operations, put(fmt.Sprintf("a%03d", i), "1"))
	}
	var early avlstar.MemoryStats
	for i := range uint64(60) {
		operations[0] = put("a", fmt.Sprint(i))
		for j := range operations[1:] {
			operations[j+1] = put(fmt.Sprintf("a%03d", j), fmt.Sprintf("%040d", i))
		}
		runBlock(t, a, sign(t, "alice", i, operations...))
		if i == 10 {
			early = a.block.version.Memory()
		}
	}
	late := a.block.version.Memory()
	require.Equal(t, early, late)
	// The 4 versions of pruning_keep_recent, and the one that the last commit released.
	require.Equal(t, 5, late.Versions)
}

// The metrics show the memory of versions that are held.
func TestMemoryMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	a, err := New(Options{Store: &memoryStore{}, KeepRecent: 3, Metrics: NewMetrics(registry)})
	require.NoError(t, err)
	_, err = a.InitChain(ctx, initRequest(aliceOwnsA))
	require.NoError(t, err)
	for i := range uint64(5) {
		runBlock(t, a, sign(t, "alice", i, put("a", fmt.Sprint(i)), put(fmt.Sprintf("a%d", i), "x")))
	}
	want := a.block.version.Memory()
	families, err := registry.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	for _, f := range families {
		if name, ok := strings.CutPrefix(f.GetName(), "starling_app_tree_"); ok {
			got[name] = f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	require.Equal(t, map[string]float64{
		"inner_nodes": float64(want.InnerNodes), "leaves": float64(want.Leaves), "held_nodes": float64(want.Held),
		"held_bytes": float64(want.HeldBytes),
		"node_bytes": float64(want.NodeBytes), "leaf_bytes": float64(want.LeafBytes), "versions": 4,
	}, got)
	require.NotZero(t, want.Held)
}
