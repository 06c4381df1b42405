package e2ebench

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cometbft/cometbft/abci/example/kvstore"
	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/test/loadtime/payload"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/workload"
	"github.com/starling-kv/starling/tx"
)

// Both networks accept the transactions, which have the configured size and keys.
func TestLoads(t *testing.T) {
	theirs := kvstore.NewInMemoryApplication()
	for _, load := range append(slices.Clone(Loads), loadSpread) {
		t.Run(load, func(t *testing.T) {
			const size = 256
			next := newMaker(load, 4, size)
			keys, all := map[string]bool{}, map[string]bool{}
			for range 100 {
				text, err := next()
				require.NoError(t, err)
				// loadtime pads with whole bytes, as hexadecimal digits.
				require.InDelta(t, size, len(text), 4)
				res, err := theirs.CheckTx(t.Context(), &abci.RequestCheckTx{Tx: []byte(text)})
				require.NoError(t, err)
				require.Zero(t, res.Code)
				_, err = tx.Decode([]byte(text), "chain")
				require.NoError(t, err)
				key, _, _ := strings.Cut(text, "=")
				keys[key], all[text] = true, true
				if load == loadOwn {
					_, err := payload.FromBytes([]byte(text))
					require.NoError(t, err)
				}
			}
			require.Len(t, all, 100)
			if load == loadOwn {
				require.Equal(t, map[string]bool{"a": true}, keys)
			} else {
				require.Len(t, keys, 100)
			}
		})
	}
}

// Keys of loadSpread are all over the tree, and none has a byte that text transactions reserve.
func TestSpread(t *testing.T) {
	next, first := newMaker(loadSpread, 4, spreadBytes), map[byte]bool{}
	for range 10_000 {
		text, err := next()
		require.NoError(t, err)
		decoded, err := tx.Decode([]byte(text), "chain")
		require.NoError(t, err)
		require.Len(t, decoded.Text.Key, workload.KeyBytes)
		require.Len(t, decoded.Text.Value, workload.ValueBytes)
		first[text[0]] = true
	}
	require.Greater(t, len(first), 200)
	require.Equal(t, "\x01>;\x00<", spread([]byte("\x00=:\x00<")))
}

func TestLedger(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	l := newLedger(3)
	for i, text := range []string{"a=1", "a=2", "a=3"} {
		require.True(t, l.begin(t.Context(), text, func() time.Time { return at(float64(i)) }))
	}
	full, cancel := context.WithCancel(t.Context())
	cancel()
	require.False(t, l.begin(full, "a=4", time.Now), "the limit is reached")

	l.seen(1, at(2), [][]byte{[]byte("a=1"), []byte("somebody else's")})
	l.seen(2, at(4), [][]byte{[]byte("a=2")})
	require.Equal(t, 1, l.pending())
	require.NoError(t, l.whole())
	l.refused("a=3", errors.New("mempool is full"))
	require.ErrorContains(t, l.whole(), "mempool is full")
	require.Zero(t, l.pending())
	require.True(t, l.begin(t.Context(), "a=5", func() time.Time { return at(4) }))
	l.seen(3, at(5), [][]byte{[]byte("a=5")})
	l.seen(4, at(90), nil)

	// Figures start with the first block, whose transactions were sent before: two in three
	// seconds.
	f := l.figures(at(0), at(10))
	require.Equal(t, figures{TPS: 2.0 / 3, P50MS: 2000, P99MS: 3000, MaxMS: 3000, IntervalMS: 1500, Txs: 2}, f)
	require.Equal(t, 2, l.blocksSince(at(5)))
	require.Equal(t, figures{}, l.figures(at(200), at(300)))

	// The time before the first block and after the last block counts, so that a stalled network
	// shows.
	require.Equal(t, Blocks{Blocks: 3, P50MS: 2000, MaxMS: 5000, TPS: 0.4}, l.intervals(at(0), at(10)))
}

// A block's rate counts the time since the block before, and latencies those of transactions sent
// in time.
func TestSeries(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	l := newLedger(1)
	l.blocks = []block{{8, at(-1), 50}, {9, at(1), 10}, {10, at(2), 20}, {11, at(6), 40}, {12, at(11), 10}}
	l.latencies = []arrival{{at(-1), time.Hour}, {at(1), time.Second}, {at(2), 3 * time.Second}}
	r := l.series(start, at(10), 5)
	require.Equal(t, []SeriesBlock{{2, 20, true}, {6, 10, false}}, r.Blocks)
	require.Equal(t, 1, r.Snapshots)
	require.InDelta(t, 4000, r.LongestMS, 1e-9)
	require.InDelta(t, 5, r.TPSDev, 1e-9)
	require.InDelta(t, 2000, r.MeanMS, 1e-9)
	require.InDelta(t, 1000, r.DevMS, 1e-9)
	require.Equal(t, 1000.0, r.CDF[0])
	require.Equal(t, 3000.0, r.CDF[len(r.CDF)-1])
	require.Zero(t, l.series(start, at(10), never).Snapshots)
}

// The targets compare each program with itself, by the interval of the median over the rounds.
func TestSnapshotsTargets(t *testing.T) {
	judged := func(rounds int, tps map[string]float64, last float64) *SnapshotsResult {
		r := &SnapshotsResult{Rounds: rounds}
		for _, name := range snapshotNames {
			if rate, ran := tps[name]; ran {
				all := slices.Repeat([]SnapshotsRound{{TPS: rate, MeanMS: 1, CDF: make([]float64, len(Percentiles))}}, rounds)
				if name == nameSnapshots {
					all[rounds-1].TPS = last
				}
				r.Networks = append(r.Networks, SnapshotsNetwork{Name: name, MakesSnapshots: makesSnapshots(name), Rounds: all})
			}
		}
		r.judge()
		return r
	}
	four := map[string]float64{nameIAVL: 1000, nameIAVLPausing: 800, nameStarling: 100, nameSnapshots: 98}
	r := judged(5, four, 98)
	require.InDelta(t, 1.225, r.Gain.Median, 1e-9)
	require.InDelta(t, 0.1225, r.Ratio.Median, 1e-9)
	require.Len(t, r.Targets, 2)
	for _, target := range r.Targets {
		require.True(t, target.Met)
		require.Empty(t, target.Undecided)
	}
	for _, target := range judged(5, four, 10).Targets {
		require.False(t, target.Met)
		require.Equal(t, "the interval contains the target", target.Undecided)
	}
	for _, target := range judged(4, four, 98).Targets {
		require.Equal(t, "4 of at least 5 rounds", target.Undecided)
	}
	four[nameSnapshots] = 0
	for _, target := range judged(5, four, 0).Targets {
		require.False(t, target.Met)
		require.Equal(t, harness.NotMeasured, target.Undecided, "a network without transactions")
	}
	delete(four, nameIAVL)
	r = judged(5, four, 0)
	require.Len(t, r.Targets, 2)
	require.Equal(t, "needs the networks iavl, iavl-pausing, starling, starling-snapshots", r.Targets[0].Undecided)
	delete(four, nameStarling)
	require.Len(t, judged(5, four, 0).Targets, 1)
}

func TestResult(t *testing.T) {
	round := func(ours, theirs float64) Round {
		return Round{Starling: Side{Saturated: figures{TPS: ours}}, KVStore: Side{Saturated: figures{TPS: theirs}}}
	}
	r := &Result{Own: newLoadResult([]Round{round(100, 50), round(900, 1000), round(300, 200)})}
	r.judge()
	require.Equal(t, 300.0, r.StarlingTPS)
	require.Equal(t, 200.0, r.KVStoreTPS)
	require.Equal(t, 1.5, r.Ratio, "the median of the rounds' ratios, not the ratio of medians")
	require.Equal(t, harness.Interval{Median: 1.5, Low: 0.9, High: 2, Confidence: 0.75}, r.Own.RatioInterval)
	require.Len(t, r.Targets, 1)
	require.Equal(t, "3 of at least 5 rounds", r.Targets[0].Undecided)
	var out bytes.Buffer
	r.Print(&out)
	require.Contains(t, out.String(), "undecided at least 0.95 of kvstore's")
	five := func(ours float64) *Result {
		r := &Result{Own: newLoadResult(slices.Repeat([]Round{round(ours, 100)}, 5))}
		r.judge()
		return r
	}
	require.True(t, five(95).Targets[0].Met)
	r = five(94)
	require.False(t, r.Targets[0].Met)
	r.Print(&out)
	require.Contains(t, out.String(), "not met   at least 0.95 of kvstore's")
}

func TestEvents(t *testing.T) {
	height, err := newHeight([]byte(`{"jsonrpc":"2.0","id":0,"result":{}}`))
	require.NoError(t, err)
	require.Zero(t, height, "the response to the subscription")
	height, err = newHeight([]byte(`{"id":0,"result":{"query":"…","data":{"type":"…","value":{"header":{"height":"7"}}},"events":{}}}`))
	require.NoError(t, err)
	require.EqualValues(t, 7, height)
	_, err = newHeight([]byte(`{"id":0,"error":{"code":-32000,"message":"Server error","data":"subscription was cancelled"}}`))
	require.ErrorContains(t, err, "subscription was cancelled")
	_, err = newHeight([]byte(`{`))
	require.Error(t, err)
}
