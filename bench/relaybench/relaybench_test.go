package relaybench

import (
	"bytes"
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/bench/harness"
)

func TestLogsOfABlock(t *testing.T) {
	const first = `I[2026-11-23|16:47:13.100] received proposal                            module=consensus proposal="Proposal{5/0 (AB12:64:CD34, -1) 0A @ 2026-11-23T16:47:13Z}" proposer=AB
I[2026-11-23|16:47:13.150] received complete proposal block             module=consensus height=5 hash=AB12
I[2026-11-23|16:47:15.000] received proposal                            module=consensus proposal="Proposal{6/0 (AB12:1:CD34, -1) 0A @ 2026-11-23T16:47:13Z}" proposer=AB
I[2026-11-23|16:47:15.001] received complete proposal block             module=consensus height=6 hash=AB12
I[2026-11-23|16:47:17.000] received proposal                            module=consensus proposal="Proposal{7/0 (AB12:70:CD34, -1) 0A @ 2026-11-23T16:47:13Z}" proposer=AB
`
	const second = `I[2026-11-23|16:47:13.110] received proposal                            module=consensus proposal="Proposal{5/0 (AB12:64:CD34, -1) 0A @ 2026-11-23T16:47:13Z}" proposer=AB
I[2026-11-23|16:47:13.400] received complete proposal block             module=consensus height=5 hash=AB12
something else
`
	var logs []map[int64]seen
	for _, text := range []string{first, second} {
		log, err := parseLog(text)
		require.NoError(t, err)
		logs = append(logs, log)
	}
	require.Equal(t, 64, logs[0][5].parts)
	full := shapeOf(defaultBytes).parts
	require.Equal(t, []float64{300}, spreads(logs, 4, full))
	require.Empty(t, spreads(logs, 5, full))
}

// The CPU time of an interval belongs to all blocks that were made in it: also to those without a
// time in another log, and to those that are not full.
func TestWorth(t *testing.T) {
	now := time.Now()
	log := map[int64]seen{
		3: {now, now, 64}, 4: {now, now, 64}, 5: {now, now, 64}, 6: {now, now, 32}, 7: {now, now, 1}, 8: {now, time.Time{}, 64},
	}
	require.InDelta(t, 2.5, worth(log, 3), 1e-9)
	require.Zero(t, worth(log, 8))
	require.Zero(t, worth(nil, 0))
}

// A full block leaves room for its header, its commit and the lengths of its transactions, and has
// more parts than one that misses a transaction.
func TestShapes(t *testing.T) {
	require.Equal(t, shape{bytes: defaultBytes, txs: 63, parts: 64}, shapeOf(defaultBytes))
	require.Equal(t, 64<<10, partBytes)
	for _, bytes := range []int{leastBytes, 300_000, 1 << 20, mostBytes} {
		s := shapeOf(bytes)
		used := s.txs * partBytes
		require.Greater(t, types.MaxDataBytes(int64(bytes), 0, validators), int64(used+8*s.txs), "%d bytes", bytes)
		require.Equal(t, s.parts, (used+1+partBytes-1)/partBytes)
		require.Greater(t, s.parts, (used-partBytes+10_000+partBytes-1)/partBytes, "without a transaction, and with 10 KB of header and commit")
	}
}

var rates = []int{defaultRate, 500_000_000}

func TestGoals(t *testing.T) {
	var variants []*variant
	for i, ms := range []float64{900, 450, 300, 301} {
		variants = append(variants, &variant{shape: shapeOf(defaultBytes), rate: int64(rates[i/2]), ms: []float64{ms}, sent: map[string]int{"taken": 3, "late": 1}})
	}
	for _, v := range slices.Clone(variants) {
		small := *v
		small.shape = shapeOf(leastBytes)
		variants = append(variants, &small)
	}
	r := newResult(Options{Rounds: 1, Rates: rates, BlockBytes: []int{defaultBytes, leastBytes}}, variants)
	require.Len(t, r.Runs, 4)
	require.Len(t, r.Targets, 2, "the targets are set for 4 MiB")
	require.Equal(t, leastBytes, r.Runs[3].BlockBytes)
	require.Equal(t, []bool{true, false}, []bool{r.Targets[0].Met, r.Targets[1].Met})
	require.Nil(t, r.Runs[0].RelayRDMA)
	var out bytes.Buffer
	r.Print(&out)
	require.Contains(t, out.String(), "75.0")
	require.Contains(t, out.String(), "RDMA was not measured")
}

func TestGoalsByRDMA(t *testing.T) {
	var variants []*variant
	for i, ms := range []float64{900, 450, 222, 300, 301, 111} {
		variants = append(variants, &variant{shape: shapeOf(defaultBytes), rate: int64(rates[i/3]), ms: []float64{ms}, sent: map[string]int{"taken": 1}, cpu: []float64{2}})
	}
	r := newResult(Options{Rounds: 1, Rates: rates, BlockBytes: []int{defaultBytes}}, variants)
	require.Equal(t, []bool{true, false}, []bool{r.Targets[0].Met, r.Targets[1].Met})
	require.InDelta(t, 222, *r.Runs[0].RelayRDMA, 1e-9)
	require.InDelta(t, 111, *r.Runs[1].RelayRDMA, 1e-9)
	var out bytes.Buffer
	r.Print(&out)
	require.Contains(t, out.String(), "over RDMA, blocks of 4MiB, p2p at 500.00 MB/s: 111 ms, CPU 2000 ms, 1 block; 100.0 % of the messages were taken, 0.0 % late")
}

// Blocks arrive over sockets and over the transport; there is no device.
func TestSends(t *testing.T) {
	o := Options{BlockBytes: []int{leastBytes, leastBytes + 1}, Sends: 2}
	all, err := sends(t.Context(), o, ends{sender: loopback, receivers: loopback}, harness.NewProgress(os.Stderr))
	require.NoError(t, err)
	require.Len(t, all, 2)
	for i, s := range all {
		require.Equal(t, o.BlockBytes[i], s.BlockBytes)
		require.Positive(t, s.Plain.Median)
		require.Positive(t, s.TLS.Median)
		require.Nil(t, s.RDMA)
	}
	var out bytes.Buffer
	(&Result{Sends: all}).Print(&out)
	require.Contains(t, out.String(), "plain TCP")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = sends(ctx, o, ends{sender: loopback, receivers: loopback}, harness.NewProgress(os.Stderr))
	require.ErrorIs(t, err, context.Canceled)
}

// TestRun runs networks of processes, which takes minutes. RELAYBENCH=1 enables it.
func TestRun(t *testing.T) {
	if os.Getenv("RELAYBENCH") == "" {
		t.Skip("RELAYBENCH is not set")
	}
	r, err := Run(context.Background(), Options{Rounds: 1, Blocks: 1, Rates: rates, BlockBytes: []int{leastBytes}, Sends: 1}, harness.NewProgress(os.Stderr))
	require.NoError(t, err)
	require.Len(t, r.Runs, 2)
}
