package app

import (
	"bytes"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/bubble"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/tx"
)

// The nodes of a checked transaction stay in memory for expectedBlocks, although the window is
// shorter: a block that has it then waits for nothing.
func TestCheckedKeysStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const window = 2
		source, local, a := startBeside(t, avlstar.Retention{Depth: 1, Window: window, Budget: func() int64 { return math.MaxInt64 }})
		defer a.Stop()
		blocks := func(n int, txs ...[]byte) {
			for range n {
				require.Equal(t, runBlock(t, local, txs...), runBlock(t, a, txs...))
				source.has(local)
			}
		}
		raw := sign(t, "alice", 4, put("a7", "x"))
		require.Equal(t, tx.CodeOK, checked(t, a, raw, abci.CheckTxType_New))
		bubble.Sleep(time.Second)
		wants := []avlstar.Want{{Key: []byte("a7")}}
		require.Empty(t, missing(a, wants))
		blocks(expectedBlocks - 1)
		require.Empty(t, missing(a, wants))
		before := source.requests()
		blocks(1, raw)
		require.Equal(t, before, source.requests())

		blocks(expectedBlocks + 2*window)
		require.NotEmpty(t, missing(a, wants), "it is forgotten")
	})
}

func TestExpectedKeys(t *testing.T) {
	rnd := seeds.Rand(t)
	var e expectedKeys
	var model [][][]byte // by block, the newest first
	key := func() []byte { return fmt.Appendf(nil, "%03d", rnd.IntN(1000)) }
	for range 200 {
		var wants []avlstar.Want
		var keys [][]byte
		for range rnd.IntN(20) {
			k := key()
			wants, keys = append(wants, avlstar.Want{Key: k}), append(keys, k)
		}
		e.add(wants)
		model = append([][][]byte{keys}, model...)
		model = model[:min(len(model), expectedBlocks)]
		first, after := key(), key()
		if rnd.IntN(4) == 0 {
			after = nil
		}
		want := false
		for _, keys := range model {
			for _, k := range keys {
				want = want || bytes.Compare(k, first) >= 0 && (after == nil || bytes.Compare(k, after) < 0)
			}
		}
		require.Equal(t, want, e.any(first, after))
		e.block()
	}
	for range expectedBlocks {
		e.block()
	}
	require.Zero(t, e.bytes)
	require.Zero(t, e.keys.Len())

	// The newest keys count.
	large := func(i int) []byte { return fmt.Appendf(make([]byte, 1000), "%06d", i) }
	const n = maxExpectedBytes/1000 + 10
	for i := range n {
		e.add([]avlstar.Want{{Key: large(i)}})
	}
	require.LessOrEqual(t, e.bytes, maxExpectedBytes)
	require.Greater(t, e.bytes, maxExpectedBytes-2000)
	require.False(t, e.any(large(0), large(1)))
	require.True(t, e.any(large(n-1), nil))
	e.add(make([]avlstar.Want, 2*maxExpectedKeys))
	for range 1 + n/forgottenPerBlock + expectedBlocks {
		e.block()
	}
	require.Zero(t, e.bytes)
}
