package papersbench

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/bench/dsmbench"
	"github.com/starling-kv/starling/bench/e2ebench"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/joinbench"
	"github.com/starling-kv/starling/bench/programsbench"
	"github.com/starling-kv/starling/bench/relaybench"
	"github.com/starling-kv/starling/bench/storagebench"
	"github.com/starling-kv/starling/bench/syncbench"
)

// TestMain lets the test binary act as the children of the benchmarks that figures run.
func TestMain(m *testing.M) {
	if len(os.Args) != 3 || os.Args[1] != harness.ChildCommand {
		os.Exit(m.Run())
	}
	serve := map[string]func(io.Reader, io.Writer) error{
		dsmbench.ChildName: dsmbench.Serve, storagebench.ChildName: storagebench.Serve, syncbench.ChildName: syncbench.Serve,
	}[os.Args[2]]
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// small has the cheapest commands of each figure. Their results mean nothing.
var small = map[string][]string{
	"avlstar/fig7":         {"byzantine --keys 2000 --peers 3 --lying 0,1 --repeat 1"},
	"avlstar/fig6":         {"sync --keys 2000 --against= --repeat 1"},
	"chainkv/stores":       {"storage --keys 9000 --blocks 4 --txs-per-block 40 --queries 20 --only write,reads --against " + strings.Join(smallPeers, ",")},
	"chainkv/recovery":     {"start --keys 9000"},
	"chainkv/observation2": {"storage --keys 9000 --blocks 4 --txs-per-block 40 --queries 200 --only locality --against mixed,geth-hash,geth-hash-goleveldb,geth-row,geth-path"},
	"rainblock/fig8":       {"dsm --quick --keys 2000 --blocks 2 --window 2 --retain 4 --depths 0,8 --accounts 2000,8000 --phases sizes"},
	"rainblock/fig7":       {"dsm --quick --keys 2000 --blocks 2 --window 2 --phases nodes --shards 1", "rainblock/trie --keys 2000 --blocks 2 --transfers 20 --gets 50"},
	"rainblock/contracts":  {"programs --quick --phases app"},
	"rainblock/fig3":       {"rainblock/trie --keys 2000 --blocks 2 --transfers 10 --gets 50 --cache-bytes 0", "rainblock/trie --keys 20000 --blocks 2 --transfers 10 --gets 50 --cache-bytes 0"},
}

// smallPeers are some of storePeers: each costs seconds.
var smallPeers = []string{"mixed", "geth-hash-goleveldb", "geth-column", "geth-path"}

// elsewhere has the figures that another test runs. BoR's figures, networks, and the SDK's part of
// AVL*'s Fig. 6 need other programs: TestDrawHandMade draws hand-made results.
var elsewhere = []string{
	"avlstar/space", "avlstar/fig3", "avlstar/fig4", "avlstar/fig5", "join/moving", "chainkv/cache", "bor/fig9", "bor/fig8", "bor/components", "bor/broadcast",
	"rainblock/fig9a", "rainblock/fig9b",
}

func TestRunFigures(t *testing.T) {
	if testing.Short() {
		t.Skip("whole runs")
	}
	for _, f := range figures {
		if f.run == nil {
			continue
		}
		commands, there := small[f.id]
		if !there {
			require.Contains(t, elsewhere, f.id, "no test runs this figure")
			continue
		}
		t.Run(strings.ReplaceAll(f.id, "/", "-"), func(t *testing.T) {
			// Their children wait most of the time. The others count reads of this process.
			if strings.HasPrefix(f.id, "chainkv/") {
				t.Parallel()
			}
			progress := harness.NewProgress(os.Stderr)
			progress.Dir = t.TempDir()
			out, err := f.run(t.Context(), commands, progress)
			require.NoError(t, err)
			check(t, out)
			if of := counts[f.id]; of != nil {
				of(t, out)
			}
			left, err := os.ReadDir(progress.Dir)
			require.NoError(t, err)
			require.Empty(t, left, "files left behind")
		})
	}
}

// counts check the counts of an outcome, which do not depend on the machine.
var counts = map[string]func(*testing.T, *outcome){
	"chainkv/observation2": func(t *testing.T, out *outcome) {
		for _, l := range out.Charts[0].Lines {
			require.Len(t, l.Points, 5, l.Name)
			// Starling's tree above the pages exceeds each limit.
			if !strings.HasPrefix(l.Name, "Starling") {
				require.Greater(t, l.Points[0].Y, last(l), "%s: more cache, fewer reads", l.Name)
			}
		}
	},
	"chainkv/stores": func(t *testing.T, out *outcome) {
		require.Len(t, out.Charts, 1+len(smallPeers)+3, "steps, ratios to the baselines, and rates by distribution")
		require.Regexp(t, strings.Join(smallPeers, ` \d+ MB, `)+` \d+ MB, .*starling \d+ MB`, out.Rows[len(out.Rows)-1].Ours)
		for _, c := range out.Charts[1 : 1+len(smallPeers)] {
			require.Len(t, c.Lines, 3+2, "%s: three distributions, and the paper's range", c.Title)
			require.Len(t, c.Lines[0].Points, 5, c.Title)
		}
	},
	"chainkv/recovery": func(t *testing.T, out *outcome) {
		require.Len(t, out.Charts[1].Lines, 2)
		for _, l := range out.Charts[1].Lines {
			require.Len(t, l.Points, 5, l.Name)
		}
	},
	"rainblock/fig8": func(t *testing.T, out *outcome) {
		lines := out.Charts[2].Lines
		require.Len(t, lines, 2, "numbers of accounts")
		for _, l := range lines {
			require.Len(t, l.Points, 3, l.Name)
			require.InDelta(t, 100, l.Points[0].Y, 0, "all are stale without a tree")
			require.Less(t, last(l), l.Points[1].Y, "%s: more retention, fewer stale transactions", l.Name)
		}
		require.Less(t, last(lines[1]), last(lines[0]), "more accounts, fewer stale transactions")
	},
	"rainblock/fig3": func(t *testing.T, out *outcome) {
		files, nodes := out.Charts[0].Lines[0], out.Charts[0].Lines[1]
		require.Greater(t, last(nodes), nodes.Points[0].Y, "a larger trie has more nodes on a path")
		require.Greater(t, last(files), last(nodes), "a node takes at least one read without a cache")
		proofs, once, ours := out.Charts[1].Lines[0], out.Charts[1].Lines[1], out.Charts[1].Lines[2]
		require.Greater(t, last(proofs), last(once), "paths of a block share nodes")
		require.Greater(t, last(once), last(ours), "a binary tree has smaller witnesses than one of 16 children")
	},
}

// last returns the y of a line's last point.
func last(l line) float64 { return l.Points[len(l.Points)-1].Y }

// check draws an outcome.
func check(t *testing.T, out *outcome) {
	t.Helper()
	require.NotEmpty(t, out.Rows)
	require.NotEmpty(t, out.Charts)
	for _, r := range out.Rows {
		require.NotContains(t, r.Ours, "NaN", r.What)
		require.NotContains(t, r.Ours, "Inf", r.What)
		require.NotContains(t, r.Ours, "%!", r.What)
	}
	for _, c := range out.Charts {
		for i, l := range c.Lines {
			for j := range l.Points { // a logarithmic axis has no zero, which a tiny run may have
				c.Lines[i].Points[j].Y = max(l.Points[j].Y, 1e-6)
			}
		}
		svg, err := picture(c, "label")
		require.NoError(t, err, c.Title)
		require.NotContains(t, string(svg), "NaN", c.Title)
	}
}

// joinOf returns a join of a chain with blocks of 1 MB, which uses one and a half processors.
func joinOf(blocks int) *joinbench.Result {
	s := float64(blocks) / 10
	r := &joinbench.Result{Blocks: blocks, BlockBytes: 1e6, TCPS: s, Blocksync500S: 2 * s, BlocksyncS: 4 * s}
	for i, name := range []string{joinbench.TCP, joinbench.BlockSync500, joinbench.BlockSync} {
		w := joinbench.Way{Name: name, Seconds: s * float64(int(1)<<i), Peak: 2}
		w.CPUS, w.KernelS = 1.5*w.Seconds, w.Seconds/2
		for i := range int(10*w.Seconds) + 1 {
			at := float64(i) / 10
			w.Samples = append(w.Samples, harness.CPUSample{At: at, User: at, Kernel: at / 2})
		}
		r.Ways = append(r.Ways, w)
	}
	return r
}

// Results of programs that a test does not start become rows and points.
func TestDrawHandMade(t *testing.T) {
	sdk := func(keys int) *syncbench.Result {
		return &syncbench.Result{Keys: keys, Seed: 1, StarlingS: 0.5, SDKRestoreS: 4, SDKCreateS: 2, SDK: &syncbench.SDK{}, Starling: syncbench.Starling{ChunkBytes: 1 << 20}}
	}
	newcomer := func(keys int) *e2ebench.NewcomerResult {
		return &e2ebench.NewcomerResult{Keys: keys, Validators: 4, Joins: []e2ebench.NewcomerJoins{{
			DelayMS: 40, Starling: []e2ebench.NewcomerJoin{{Seconds: 2, AfterDiscoveryS: 2}}, IAVL: []e2ebench.NewcomerJoin{{Seconds: 8, AfterDiscoveryS: 3}},
			Ratio: harness.MedianInterval([]float64{4}), AfterDiscovery: harness.MedianInterval([]float64{1.5}),
		}}}
	}
	lying := newcomer(2000)
	lying.Lying = 1
	ten, wide := newcomer(2000), newcomer(2000)
	ten.Validators, wide.ChunkBytes = 10, 12_000_000
	out, err := drawNewcomer([]*e2ebench.NewcomerResult{newcomer(2000), newcomer(1_000_000), lying, ten, wide})
	require.NoError(t, err)
	check(t, out)
	require.Equal(t, row{"2,000 keys, 40 ms", "IAVL+ over AVL* about 2 ×", "Starling 2.00 s, IAVL 8.00 s: 4.00 [4.00, 4.00] ×; 3.00 s after the discovery: 1.50 [1.50, 1.50] ×"}, out.Rows[0])
	require.Contains(t, out.Rows[1].Paper, "16.3 s")
	require.Equal(t, "2,000 keys, 40 ms, 1 of 4 validators Byzantine", out.Rows[2].What)
	require.Equal(t, "2,000 keys, 40 ms, 10 validators", out.Rows[3].What)
	require.Equal(t, "2,000 keys, 40 ms, chunks of 12,000,000 bytes", out.Rows[4].What)
	require.Len(t, out.Charts[0].Lines, 4)
	require.Len(t, out.Charts[0].Lines[2].Points, 2)

	out, err = drawSnapshot([]*syncbench.Result{sdk(2000)})
	require.NoError(t, err)
	check(t, out)
	require.Contains(t, out.Rows[0].Ours, "SDK's snapshot 2.00 s")

	snapshots := func(name string, tps float64) e2ebench.SnapshotsNetwork {
		n := e2ebench.SnapshotsNetwork{Name: name, MakesSnapshots: true, TPS: harness.MedianInterval([]float64{tps}), MeanMS: harness.MedianInterval([]float64{1500})}
		for i := range e2ebench.Percentiles {
			n.CDF = append(n.CDF, float64(1000+i))
		}
		n.Rounds = []e2ebench.SnapshotsRound{{DevMS: 500, LongestMS: 4000, Snapshots: 1, Blocks: []e2ebench.SeriesBlock{{AtS: 1, TPS: tps}, {AtS: 2, TPS: 2 * tps, Snapshot: true}}}}
		return n
	}
	out, err = drawSnapshots("Fig. 4", "IAVL+", "AVL*")([]*e2ebench.SnapshotsResult{{
		Keys: 7, Networks: []e2ebench.SnapshotsNetwork{snapshots("iavl-pausing", 100), snapshots("starling-snapshots", 200)},
		Gain: harness.MedianInterval([]float64{1.1}), GainLatency: harness.MedianInterval([]float64{0.9}),
		Ratio: harness.MedianInterval([]float64{2}), Latency: harness.MedianInterval([]float64{1}), Kept: harness.MedianInterval([]float64{0.99}),
	}})
	require.NoError(t, err)
	check(t, out)
	require.Equal(t, row{"iavl-pausing", "IAVL+", "100 [100, 100] ± 0 tx/s, 1.50 [1.50, 1.50] ± 0.50 s; snapshots: 1, longest time between two blocks 4.0 s"}, out.Rows[0])
	require.Equal(t, "1.10 [1.10, 1.10] × tx/s, 0.90 [0.90, 0.90] × latency", out.Rows[2].Ours)
	require.Equal(t, row{"starling-snapshots over starling", "", "0.99 [0.99, 0.99] × tx/s"}, out.Rows[4])
	require.Len(t, out.Charts[0].Lines, 2)
	require.Equal(t, point{X: 2, Y: 200, High: 200}, out.Charts[0].Lines[0].Points[1], "a snapshot")
	require.Equal(t, at(1, 1), out.Charts[1].Lines[0].Points[0])

	joins := []*joinbench.Result{joinOf(20), joinOf(60)}
	out, err = drawBlocks(joins)
	require.NoError(t, err)
	check(t, out)
	require.Equal(t, row{"60 MB in 60 blocks", "RDMA up to 20.2 % less time than TCP", "transport 6.00 s; block sync 12.00 s, 24.00 s at its default rate"}, out.Rows[4])
	require.Equal(t, row{"60 MB in 60 blocks: transport, TCP with TLS", "", "9.00 CPU s, 33 % of it in the kernel; 1.50 processors on average, at most 2.00 in a second"}, out.Rows[5])
	require.Len(t, out.Charts[0].Lines, 3, "none over RDMA")
	require.Equal(t, []point{at(20, 2), at(60, 6)}, out.Charts[0].Lines[0].Points)
	require.Equal(t, []point{at(20, 1.5), at(60, 1.5)}, out.Charts[1].Lines[0].Points)

	out, err = drawUse(joins[1:])
	require.NoError(t, err)
	check(t, out)
	require.Len(t, out.Charts[0].Lines, 2)
	require.Len(t, out.Charts[1].Lines, 3)
	require.Equal(t, "0.50", out.Rows[3].Ours)
	for _, l := range out.Charts[1].Lines {
		require.LessOrEqual(t, len(l.Points), usePoints)
		require.InDelta(t, 1.5, l.Points[7].Y, 1e-9)
	}
	rdma := 90.0
	out, err = drawRelay([]*relaybench.Result{{Validators: 3, Runs: []relaybench.Row{
		{BlockBytes: 1e6, P2PRate: 5_120_000, P2PMS: 200, RelayTCPMS: 50}, {BlockBytes: 4e6, P2PRate: 5_120_000, P2PMS: 800, RelayTCPMS: 100, P2PCPUMS: 7, RelayCPUMS: 8},
		{BlockBytes: 4e6, P2PRate: 5e8, P2PMS: 120, RelayTCPMS: 110, RelayRDMA: &rdma},
	}, Sends: []relaybench.Send{
		{BlockBytes: 1e6, Plain: harness.MedianInterval([]float64{1}), TLS: harness.MedianInterval([]float64{2})},
		{BlockBytes: 4e6, Plain: harness.MedianInterval([]float64{4}), TLS: harness.MedianInterval([]float64{7, 8, 9})},
	}}})
	require.NoError(t, err)
	check(t, out)
	require.Equal(t, row{"block of 4.00 MB, p2p at 5.12 MB/s", "", "p2p 800 ms, transport 100 ms; CPU of all validators 7 and 8 ms"}, out.Rows[1])
	require.Equal(t, row{"block of 4.00 MB, without consensus", "", "plain TCP 4.0 ms, with TLS 8.0 ms"}, out.Rows[5])
	require.Len(t, out.Charts[0].Lines, 5)
	require.Equal(t, []point{at(1, 200), at(4, 800)}, out.Charts[0].Lines[0].Points)
	require.Equal(t, []point{at(1, 2, 2, 2), at(4, 8, 7, 9)}, out.Charts[1].Lines[1].Points)

	joins[0].Ways[0].Components = []joinbench.Component{{Name: "network", Seconds: 2}, {Name: "other", Seconds: 1}}
	joins[0].Ways[2].Components = []joinbench.Component{{Name: "network", Seconds: 1}, {Name: "other", Seconds: 3}}
	out, err = drawComponents(joins)
	require.NoError(t, err)
	check(t, out)
	require.Equal(t, []row{
		{"transport, TCP with TLS", "", "3.00 CPU s: network 2.00, other 1.00"}, {"block sync, default rate", "", "4.00 CPU s: network 1.00, other 3.00"},
	}, out.Rows)
	require.Equal(t, []string{"network", "other"}, out.Charts[0].Names)
	_, err = drawUse([]*joinbench.Result{{}})
	require.ErrorContains(t, err, "/proc")

	network := func(mode string, tps float64) programsbench.NetRow {
		return programsbench.NetRow{Mode: mode, Percent: 15, TPS: harness.Interval{Median: tps, Low: tps - 1, High: tps + 1}}
	}
	cells := func(tps ...float64) (cells []programsbench.GridCell) {
		for i, x := range tps {
			cells = append(cells, programsbench.GridCell{Gateways: 1 + i, NetRow: network(programsbench.ModeSharded, x)})
			cells[i].StorageRequestsS, cells[i].StorageKeysS = x/10, x
		}
		return cells
	}
	depths := []int{0, 8}
	out, err = drawGrid([]*programsbench.Result{{Grid: []programsbench.GridRow{
		{Mode: programsbench.ModeLocal, Cells: cells(2000)}, {Retain: &depths[0], Cells: cells(1000, 900)}, {Retain: &depths[1], Cells: cells(1500, 800)},
	}}})
	require.NoError(t, err)
	check(t, out)
	require.Equal(t, row{"r 8, 1 gateway", "about 30K with r 7", "1500 transactions per second, 0.75 × the whole state"}, out.Rows[5])
	require.Equal(t, row{"r 8, 1 gateway: a storage node", "1.3K requests per second with r 0 to 9.4K with r 6", "150 requests, 1500 keys with proofs per second"}, out.Rows[6])
	require.Equal(t, []point{at(0, 100), at(8, 150)}, out.Charts[1].Lines[0].Points)
	require.Len(t, out.Charts[0].Lines, 2)
	require.Len(t, out.Charts[0].Lines[0].Points, 2)

	all := []programsbench.NetRow{network(programsbench.ModeSharded, 900), network(programsbench.ModeLocal, 2000), network(programsbench.ModeWAN, 800)}
	out, err = drawRegions([]*programsbench.Result{{Network: all, WANRatio: 0.89, DelayMS: 40}})
	require.NoError(t, err)
	check(t, out)
	require.Equal(t, row{"with delays over without", "0.8", "0.89"}, out.Rows[2])
	require.InDelta(t, 80, out.Charts[0].Lines[0].Points[1].X, 0)
	_, err = drawRegions([]*programsbench.Result{{Network: all[:2]}})
	require.ErrorContains(t, err, "no network with delays")
	_, err = drawRegions([]*programsbench.Result{{Failed: []string{"it did not start"}}})
	require.ErrorContains(t, err, "did not start")
}
