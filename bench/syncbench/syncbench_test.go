package syncbench

import (
	"bytes"
	"context"
	"encoding/json"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/workload"
	"github.com/starling-kv/starling/internal/child"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/transport"
)

func sample() *Result {
	r := &Result{
		Keys: 1_000_000, StarlingS: 0.5, SettledS: 0.7, SDKRestoreS: 36, SDKCreateS: 26, MemiavlS: 2, CPUS: 0.6, ServerCPUS: 0.1, JoinerCPUS: 0.5, Bytes: 123e6, RSSBytes: 500e6, Seed: 1, Repeat: 3,
		Starling: Starling{
			ChunkBytes: 1 << 20, Seconds: []float64{0.4, 0.5, 0.6}, BesideTree: 60e6,
			ServerMemory: harness.Memory{Anon: 300e6, Files: 20e6}, JoinerMemory: harness.Memory{Anon: 400e6, Files: 20e6},
			Join: JoinStats{Chunks: 167, FetchedS: 0.3},
		},
		SDK:     &SDK{CreateS: 26, Seconds: []float64{36}, CPUS: 80, Chunks: 14, Bytes: 131e6, Memory: harness.Memory{Anon: 2e9}},
		Memiavl: &Memiavl{Seconds: []float64{2}, CPUS: 2.5, Bytes: 123e6, Memory: harness.Memory{Anon: 8e6, Files: 240e6}},
		Floor:   Floor{LoopbackS: 0.06, DiskS: 0.15, Hash: hashCost{Kernel: "avx512", Inner: 30, Leaf: 31, Value: 32, Key: 16}, Cores: 2},
	}
	r.Floor.compute(r.Keys, r.CPUS)
	r.FloorS = r.Floor.Seconds
	r.Targets = r.targets()
	return r
}

func TestFloorIsTheLargestPart(t *testing.T) {
	f := sample().Floor
	require.InDelta(t, 0.0545, f.HashesS, 1e-3)
	require.InDelta(t, 0.3, f.CPUS, 1e-9)
	require.Equal(t, "disk", f.By, "our own CPU time is not part of the floor")
	require.InDelta(t, 0.15, f.Seconds, 1e-9)
	f.compute(10_000_000, 0.6)
	require.Equal(t, "hashes", f.By)
	f.compute(1000, 0)
	require.Equal(t, "disk", f.By)
}

func TestGoals(t *testing.T) {
	got := map[string]string{}
	for _, g := range sample().Targets {
		got[g.Name] = map[bool]string{true: "met", false: "not met"}[g.Met] + " " + g.Measure
	}
	require.Equal(t, map[string]string{
		"at least 80× faster than the SDK's store restores":            "not met 72×",
		"at least 3× faster than memiavl":                              "met 4×",
		"within 8× of the floor":                                       "met 3.33×",
		"the joiner takes at most 1.1 s of CPU time per million keys":  "met 0.5 s",
		"the server takes at most 0.35 s of CPU time per million keys": "met 0.1 s",
		"the joiner's anonymous memory without its tree at most 64 MB": "met 60 MB",
	}, got)
	paged := sample()
	paged.Paged = &Paged{BudgetBytes: 30e6, BesideBudget: 65e6}
	require.Contains(t, paged.targets(), harness.Target{
		Name: "a paged joiner's anonymous memory beyond its budget at most 64 MB", Figure: 65, Measure: "65 MB",
	})
	small := sample()
	small.DefaultChunks = &DefaultChunks{StarlingS: 0.2}
	require.Contains(t, small.targets(), harness.Target{Name: "within 2× of the same keys in chunks of 1 MiB", Figure: 2.5, Measure: "2.5×"})
}

func TestTable(t *testing.T) {
	var out bytes.Buffer
	sample().Print(&out)
	lines := strings.Split(out.String(), "\n")
	require.Equal(t, []string{"1,000,000", "keys", "starling", "memiavl", "sdk-iavl", "floor"}, strings.Fields(lines[0]))
	require.Equal(t, []string{"join,", "s", "0.500", "2.000", "36.000", "0.150"}, strings.Fields(lines[1]))
	require.Equal(t, []string{"from", "0.400", "2.000", "36.000"}, strings.Fields(lines[2]))
	require.Equal(t, []string{"×", "1", "4", "72", "0.3"}, strings.Fields(lines[4]))
	require.Contains(t, out.String(), "\n  met       at least 3× faster than memiavl: 4×\n")
	require.NotContains(t, out.String(), "paged")
	paged := sample()
	paged.Paged = &Paged{StarlingS: 0.7, Seconds: []float64{0.7}, BudgetBytes: 30e6, BesideBudget: 65e6}
	var second bytes.Buffer
	paged.Print(&second)
	require.Equal(t, []string{"keys", "starling", "paged", "memiavl"}, strings.Fields(second.String())[1:5])
	require.Contains(t, second.String(), "a budget of 30 MB, which counts as its tree; 1 join\n")
	for _, row := range []string{"anonymous memory, MB", "  joiner", "memory of files, MB", "network", "files synced"} {
		require.Contains(t, out.String(), "\n"+row+" ")
	}
	require.NotContains(t, out.String(), "%!", "a format does not match its arguments")
}

func TestJSONLeavesOutMissingPeers(t *testing.T) {
	r := sample()
	r.SDK, r.SDKRestoreS, r.SDKCreateS = nil, 0, 0
	b, err := json.Marshal(r)
	require.NoError(t, err)
	require.NotContains(t, string(b), "sdk")
	require.Contains(t, string(b), `{"keys":1000000,"starling_s":0.5,"settled_s":0.7,"memiavl_s":2,"floor_s":0.15,"cpu_s":0.6,"joiner_cpu_s":0.5,"server_cpu_s":0.1,"bytes":123000000,"rss_bytes":500000000`)
	var back Result
	require.NoError(t, json.Unmarshal(b, &back))
	require.Equal(t, *r, back)
}

func TestByzantineRows(t *testing.T) {
	r := &ByzantineResult{Keys: 1000, Peers: 80, Lies: Lies, Repeat: 3, Limit: 300}
	of := func(seconds float64, ended bool, refetched int) joined {
		return joined{answer: answer{Ended: ended, Seconds: seconds, Stats: JoinStats{Refetched: refetched}}}
	}
	r.Rows = []LyingRow{
		rowOf(0, []joined{of(2, true, 0), of(1, true, 0), of(3, true, 0)}),
		rowOf(26, []joined{of(3, true, 7), of(9, true, 9), of(1, true, 1)}),
		rowOf(79, []joined{of(5, true, 0), of(300, false, 0), of(6, true, 0)}),
	}
	r.judge()
	require.Equal(t, 2.0, r.Rows[0].StarlingS)
	require.Equal(t, 7, r.Rows[1].Refetched, "figure of the median join")
	require.Equal(t, 1.5, r.Rows[1].Ratio)
	even := rowOf(26, []joined{of(4, true, 4), of(1, true, 1), of(2, true, 2), of(3, true, 3)})
	require.Equal(t, 2.0, even.StarlingS)
	require.Equal(t, 2, even.Refetched, "a row has the figures of one join")
	require.Equal(t, 1, r.Rows[2].Unended)
	require.Len(t, r.Targets, 2)
	require.False(t, r.Targets[0].Met)
	require.False(t, r.Targets[1].Met)
	var out bytes.Buffer
	r.Print(&out)
	require.NotContains(t, out.String(), "%!", "a format does not match its arguments")
}

func TestHiccupRows(t *testing.T) {
	r := &HiccupResult{Starling: []HiccupRow{hiccupRow(slices.Repeat([]int64{1e6, 2e6, 4e6}, 100)), hiccupRow(slices.Repeat([]int64{1e6, 5e6}, 150))}}
	r.Starling[1].Joiners, r.Starling[1].ServedMBS, r.RateMBPS = 4, 19, 5
	r.judge()
	require.Equal(t, HiccupRow{P50MS: 2, P99MS: 4, MaxMS: 4, P99Ratio: 1, MaxRatio: 1, Blocks: 300}, r.Starling[0])
	require.Len(t, r.Targets, 2)
	require.True(t, r.Targets[0].Met)
	require.Equal(t, "2×", r.Targets[0].Measure)
	require.True(t, r.Targets[1].Met)
	require.Equal(t, "1.25×", r.Targets[1].Measure)
	r.Targets, r.Starling[1].ServedMBS = nil, 5
	r.judge()
	require.False(t, r.Targets[1].Met)
	require.Equal(t, "1.25×, but the joiners got 5.0 MB/s, not 20.0", r.Targets[1].Measure)
	require.Empty(t, r.Targets[1].Undecided)
	r.Targets, r.Starling[1].Blocks = nil, 299
	r.judge()
	require.Equal(t, "the p99 of 299 blocks is nearly their longest time", r.Targets[1].Undecided)
	var out bytes.Buffer
	r.Print(&out)
	require.NotContains(t, out.String(), "%!", "a format does not match its arguments")
}

// A Byzantine peer responds honestly except for its kind of invalid response, which is never empty.
func TestLiars(t *testing.T) {
	v := loaded(t, 30_000)
	require.Greater(t, v.NumChunks(), uint32(2))
	s := serveOnly(v)
	defer func() { require.NoError(t, s.close()) }()
	height := []byte{0, 0, 0, 0, 0, 0, servedHeight >> 8, servedHeight & 255}
	want, err := v.Chunk(1)
	require.NoError(t, err)
	chunk := transport.Request{Method: protocol.MethodChunk, Body: chunkBody(height, 1, uint32(len(want)))}
	manifest := transport.Request{Method: protocol.MethodManifest, Body: height}
	truth, err := s.mux.Serve(t.Context(), chunk)
	require.NoError(t, err)
	require.Equal(t, want, truth)
	for _, lie := range Lies {
		l := liar{s.mux, lie, v}
		ctx, cancel := context.WithCancel(t.Context())
		if lie == "silent" {
			cancel()
		}
		b, err := l.Serve(ctx, chunk)
		cancel()
		if lie == "silent" {
			require.ErrorIs(t, err, context.Canceled)
		} else {
			require.NoError(t, err, lie)
			require.NotEqual(t, want, b, lie)
		}
		m, err := l.Serve(t.Context(), manifest)
		require.NoError(t, err, lie)
		require.Equal(t, lie != "manifest", bytes.Equal(m, v.Manifest().Encode()), lie)
	}
	after, err := v.Chunk(1)
	require.NoError(t, err)
	require.Equal(t, want, after, "an invalid response changed the state itself")
}

func loaded(t *testing.T, keys int) *avlstar.Version {
	w, err := workload.New(specOf(keys, 1), 0)
	require.NoError(t, err)
	v, err := avlstar.Empty(avlstar.DefaultChunkBytes)
	require.NoError(t, err)
	for !w.Loaded() {
		v, err = applied(v, w.Next())
		require.NoError(t, err)
	}
	t.Cleanup(v.Release)
	return v
}

func TestFloorMeasures(t *testing.T) {
	f, err := measureFloor(t.Context(), t.TempDir(), 1<<20, 2000, 0)
	require.NoError(t, err)
	for _, figure := range []float64{
		f.Seconds, f.LoopbackS, f.DiskS, f.HashesS, f.LoopbackMBPerS, f.DiskMBPerS, f.Hash.Inner, f.Hash.Leaf, f.Hash.Value, f.Hash.Key,
	} {
		require.Positive(t, figure)
	}
	require.Equal(t, runtime.GOMAXPROCS(0), f.Cores)
	require.NotEmpty(t, f.By)
	_, err = loopbackSeconds(t.Context(), 3*pieceBytes+5)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = measureFloor(ctx, t.TempDir(), 1<<20, 2000, 0)
	require.ErrorIs(t, err, context.Canceled)
}

// If a block changes a key twice, the last change counts.
func TestBlocksHaveEachKeyOnce(t *testing.T) {
	w, err := workload.New(workload.Spec{Seed: 1, Keys: workload.MinKeys, Batch: workload.MinKeys}, 2*stepsABlock)
	require.NoError(t, err)
	w.Next()
	seen := map[string]bool{}
	changes := blockOf(w)
	for _, c := range changes {
		require.False(t, seen[string(c.Key)])
		seen[string(c.Key)] = true
	}
	require.Greater(t, len(changes), workload.Changes)
	require.Less(t, len(changes), stepsABlock*workload.Changes, "with only 2,000 keys, some change twice")
}

func TestServeRefuses(t *testing.T) {
	ask := func(role string, requests ...request) (answers []child.Reply[answer]) {
		var in, out bytes.Buffer
		lines := json.NewEncoder(&in)
		require.NoError(t, lines.Encode(begin{Role: role, Spec: specOf(2000, 1), Dir: t.TempDir()}))
		for _, r := range requests {
			require.NoError(t, lines.Encode(r))
		}
		err := Serve(&in, &out)
		require.Equal(t, role == "dancer", err != nil)
		for d := json.NewDecoder(&out); d.More(); {
			var a child.Reply[answer]
			require.NoError(t, d.Decode(&a))
			answers = append(answers, a)
		}
		return answers
	}
	require.Contains(t, ask("dancer")[0].Error, `"dancer"`)
	for _, role := range []string{roleServer, roleJoiner, roleMemiavl, roleImporter, roleValidator, roleDownload} {
		a := ask(role, request{Op: "dance"})
		require.Len(t, a, 2, role)
		require.Empty(t, a[0].Error, role)
		require.Contains(t, a[1].Error, "dance", role)
	}
	a := ask(roleServer, request{Op: opServe, Peers: 1})
	require.Contains(t, a[1].Error, "has 0 keys", "the server has loaded no keys")
}

func TestCosmosTargets(t *testing.T) {
	r := &CosmosResult{Commits: harness.FewBlocks, Engines: map[string]CosmosFigure{
		"goleveldb": {Times: 16, SDKCreateS: 30, SDKRestoreS: 10, AgainS: 2, ManifestMS: 51, VerifyCPUS: 0.5, Overhead: 5, BytesX: 1.2, CommitP99: 1.35, Commits: map[string]CommitFigure{"joined": {}}},
		"pebbledb":  {Times: 14},
	}}
	targets := r.targets()
	require.Len(t, targets, 7+6)
	require.Equal(t, harness.Target{Name: "goleveldb: a join at least 8× as fast as the SDK's create and restore", Met: true, Figure: 16, Measure: "16×"}, targets[0])
	require.True(t, targets[1].Met, "exactly 20×")
	require.Equal(t, harness.Target{Name: "goleveldb: a manifest within 50 ms", Figure: 51, Measure: "51 ms"}, targets[2])
	require.Equal(t, "1.35×", targets[6].Measure)
	require.Empty(t, targets[6].Undecided)
	require.False(t, targets[5].Met)
	require.False(t, targets[6].Met)
	require.Equal(t, "pebbledb: a join at least 15× as fast as the SDK's create and restore", targets[7].Name)
	require.Equal(t, harness.NotMeasured, targets[8].Undecided)
	require.Empty(t, (&CosmosResult{}).targets(), "stores only")
}
