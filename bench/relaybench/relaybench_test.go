package relaybench

import (
	"bytes"
	"context"
	"os"
	"testing"

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
	require.Equal(t, []float64{300}, spreads(logs, 4, leastParts))
	require.Empty(t, spreads(logs, 5, leastParts))
}

var rates = []int{defaultRate, 500_000_000}

func TestGoals(t *testing.T) {
	var variants []*variant
	for i, ms := range []float64{900, 450, 300, 301} {
		variants = append(variants, &variant{rate: int64(rates[i/2]), ms: []float64{ms}, sent: map[string]int{"taken": 3, "late": 1}})
	}
	r := newResult(Options{Rounds: 1, Rates: rates}, variants)
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
		variants = append(variants, &variant{rate: int64(rates[i/3]), ms: []float64{ms}, sent: map[string]int{"taken": 1}, cpu: []float64{2}})
	}
	r := newResult(Options{Rounds: 1, Rates: rates}, variants)
	require.Equal(t, []bool{true, false}, []bool{r.Targets[0].Met, r.Targets[1].Met})
	require.InDelta(t, 222, *r.Runs[0].RelayRDMA, 1e-9)
	require.InDelta(t, 111, *r.Runs[1].RelayRDMA, 1e-9)
	var out bytes.Buffer
	r.Print(&out)
	require.Contains(t, out.String(), "over RDMA, p2p at 500.00 MB/s: 111 ms, CPU 2000 ms, 1 block; 100.0 % of the messages were taken, 0.0 % late")
}

// TestRun runs networks of processes, which takes minutes. RELAYBENCH=1 enables it.
func TestRun(t *testing.T) {
	if os.Getenv("RELAYBENCH") == "" {
		t.Skip("RELAYBENCH is not set")
	}
	r, err := Run(context.Background(), Options{Rounds: 1, Blocks: 1, Rates: rates}, harness.NewProgress(os.Stderr))
	require.NoError(t, err)
	require.Len(t, r.Runs, 2)
}
