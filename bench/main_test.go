package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/bench/clientbench"
	"github.com/starling-kv/starling/bench/dsmbench"
	"github.com/starling-kv/starling/bench/e2ebench"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/joinbench"
	"github.com/starling-kv/starling/bench/programsbench"
	"github.com/starling-kv/starling/bench/storagebench"
	"github.com/starling-kv/starling/bench/syncbench"
	"github.com/starling-kv/starling/bench/treebench"
)

// TestMain lets the test binary act as the children that a benchmark starts, because a benchmark
// runs its own program.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == harness.ChildCommand {
		main()
		return
	}
	os.Exit(m.Run())
}

func run(ctx context.Context, args ...string) (string, error) {
	root := newRoot()
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	return out.String(), err
}

// measure runs a benchmark. It returns its table, which must contain texts, and its JSON, both
// decoded and as a map. The run must leave no files in its folder.
func measure[R any](t *testing.T, texts []string, args ...string) (out string, result R, figures map[string]any) {
	t.Helper()
	if testing.Short() {
		t.Skip("a whole run")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "result.json")
	// A run that hangs ends before the test binary's time limit, so that its files are removed and
	// the other tests run.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	out, err := run(ctx, append(args, "--json", file, "--dir", dir)...)
	require.NoError(t, err)
	for _, text := range texts {
		require.Contains(t, out, text)
	}
	require.NotContains(t, out, "%!", "a format does not match its arguments")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "files left behind")
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &result))
	require.NoError(t, json.Unmarshal(b, &figures))
	machine := figures["machine"].(map[string]any)
	require.NotEmpty(t, machine["cpu"])
	require.IsType(t, 1.0, machine["load"])
	require.Contains(t, machine, "commit") // empty for changed code
	date, err := time.Parse(time.RFC3339, machine["date"].(string))
	require.NoError(t, err)
	require.Equal(t, time.UTC, date.Location())
	require.Positive(t, date.Unix())
	return out, result, figures
}

// positive checks figures of a result's JSON.
func positive(t *testing.T, figures map[string]any, names ...string) {
	t.Helper()
	for _, name := range names {
		require.IsType(t, 1.0, figures[name], name)
		require.Positive(t, figures[name], name)
	}
}

func TestTree(t *testing.T) {
	_, _, figures := measure[treebench.Result](t,
		[]string{"starling", "memiavl", "memiavl mapped", "iavl", "commit p50, ms", "on one core", "floor", "commit at least 7× memiavl"},
		"tree", "--keys", "2000", "--batch", "500", "--versions", "20", "--iavl-versions", "10", "--exports", "1", "--seed", "3")
	for _, name := range []string{"starling", "iavl", "memiavl", "memiavl_mapped"} {
		of := figures[name].(map[string]any)
		positive(t, of, "commit_p50_ms", "commit_one_core_p50_ms", "commit_p99_ms", "get_ns", "proof_us", "export_s", "import_s", "commit_p99_during_export_ms")
		require.Equal(t, name == "memiavl_mapped", of["load_s"] == 0.0, "only the mapped memiavl loads nothing")
		require.NotEmpty(t, of["final_root"])
	}
	positive(t, figures["floor"].(map[string]any), "commit_ms")

	out, _, figures := measure[treebench.Result](t, nil, "tree", "--keys", "2000", "--versions", "5", "--against", "")
	require.NotContains(t, out, "memiavl")
	require.NotContains(t, figures, "iavl")
	require.NotContains(t, figures, "memiavl")
}

// Every part runs on a small chain, and every figure is present and plausible. Each run itself
// fails unless every read returns the right value.
func TestStorage(t *testing.T) {
	_, result, figures := measure[storagebench.Result](t,
		[]string{"goleveldb", "+ zones", "+ key order", "+ cache", "+ no log", "10:0", "0:10", "start after SIGKILL", "saturation", "paged  ", "writes at least 2× mixed"},
		"storage", "--keys", "9000", "--blocks", "6", "--txs-per-block", "100", "--queries", "60", "--seed", "3", "--cold")
	var names []string
	for _, c := range result.Writes {
		names = append(names, c.Contestant)
		require.Positive(t, c.BlocksPerS, c.Contestant)
		require.Greater(t, c.WriteAmplification, 0.9, "%s wrote less than its input", c.Contestant)
		require.GreaterOrEqual(t, c.RequestBytes, c.LogicalBytes-c.LogicalBytes/10, c.Contestant)
		require.Greater(t, c.Space, c.LogicalBytes/2, c.Contestant)
		budget := result.Budget
		if strings.HasSuffix(c.Contestant, "tuned") {
			budget = 512 << 20
		}
		p := c.Plan
		require.Equal(t, budget, p.Memtables+p.BlockCache+p.Nodes+p.Upper+p.Cache, "memory of %s", c.Contestant)
		require.Len(t, c.Rates, 6)
		require.LessOrEqual(t, c.Interval.Low, c.Interval.High)
	}
	require.Equal(t, []string{"mixed", "goleveldb", "mixed, tuned", "starling, tuned", "zones", "leaves", "leaves + cache", "starling"}, names)
	require.GreaterOrEqual(t, result.Sizes.StateBytes, 4*result.Budget)
	require.Len(t, result.Reads, 7*5*3)
	seen := map[string]bool{}
	for _, c := range result.Reads {
		name := c.Contestant + c.Step + c.Mix + c.Distribution
		require.False(t, seen[name], "%s twice", name)
		seen[name] = true
		require.Equal(t, 60, c.Queries, name)
		require.Positive(t, c.PerS, name)
		require.True(t, c.HitRate >= 0 && c.HitRate <= 1, name)
	}
	require.Len(t, result.Cache, 8*(5+2))
	for _, c := range result.Cache {
		require.Positive(t, c.PerS, "%s %s", c.Split, c.Mix)
	}
	require.GreaterOrEqual(t, result.Recovery.Keys, 9000)
	require.GreaterOrEqual(t, result.Recovery.Lost, int64(0))
	require.Len(t, result.Recovery.Crashes, 5)
	for _, c := range result.Recovery.Crashes {
		require.True(t, 0 <= c.Lost && c.Lost <= int64(c.Blocks), "%d of %d blocks lost", c.Lost, c.Blocks)
		require.Positive(t, c.Seconds)
	}
	require.Equal(t, 6, result.Commit.Blocks)
	positive(t, figures["commit"].(map[string]any), "durable_p50_ms", "unpaced_durable_blocks_per_s", "reclaim_max_ms")
	positive(t, figures["paged"].(map[string]any), "commit_cpu_ms", "memory_commit_cpu_ms", "pages_per_commit", "get_us", "absent_us", "proof_us", "mixed_get_us")
	require.LessOrEqual(t, result.Paged.PagesPerCommit, 200.0, "a page for each change and for its neighbours")
	positive(t, figures, "write_ratio", "write_ratio_tuned", "write_ratio_to_tuned", "read_ratio_acc", "read_ratio_tx", "read_cpu_ratio_acc", "read_cpu_ratio_tx",
		"write_amplification", "sgc_gain", "recovery_s")
}

func TestStorageOnly(t *testing.T) {
	out, _, _ := measure[storagebench.Result](t, []string{"start after SIGKILL"}, "storage", "--keys", "9000", "--only", "recovery", "--against", "")
	require.NotContains(t, out, "mixed")
}

func TestStart(t *testing.T) {
	_, result, figures := measure[storagebench.StartResult](t, []string{"in memory, s", "filled after, s"}, "start", "--keys", "9000,12000")
	require.Len(t, result.Starts, 2)
	for i := range result.Starts {
		positive(t, figures["starts"].([]any)[i].(map[string]any), "seconds", "paged_s", "leaves_s", "fill_s", "fill_blocks", "fill_p50_ms", "filled_p50_ms")
	}
	require.Empty(t, result.Targets, "they are set for ten million keys")
}

// All contestants join a state of a few keys; each run itself checks the state at the end.
func TestSync(t *testing.T) {
	_, result, figures := measure[syncbench.Result](t,
		[]string{"starling", "memiavl", "sdk-iavl", "floor", "join, s", "at least 80× faster than the SDK's store restores"},
		"sync", "--keys", "20000", "--repeat", "2", "--sdk-repeat", "1", "--seed", "3")
	positive(t, figures, "starling_s", "sdk_restore_s", "sdk_create_s", "memiavl_s", "floor_s", "cpu_s", "bytes", "rss_bytes")
	require.Len(t, result.Starling.Seconds, 2)
	require.Len(t, result.Memiavl.Seconds, 2)
	require.Len(t, result.SDK.Seconds, 1)
	j := result.Starling.Join
	require.EqualValues(t, 20_000, j.Keys)
	require.Greater(t, j.Chunks, 2)
	require.Positive(t, j.ManifestS)
	require.GreaterOrEqual(t, j.FetchedS, j.ManifestS)
	require.GreaterOrEqual(t, j.DurableS, j.FetchedS)
	require.Zero(t, j.Banned)
	const leaf = 1 + 1 + 20 + 1 + 100
	require.Greater(t, result.Bytes, int64(20_000*leaf))
	require.InDelta(t, max(result.Floor.LoopbackS, result.Floor.HashesS, result.Floor.DiskS), result.FloorS, 1e-9, "the floor is the largest of the three hardware limits")
	require.Positive(t, result.SDK.Chunks)
	if runtime.GOOS == "linux" {
		for name, m := range map[string]harness.Memory{
			"server": result.Starling.ServerMemory, "joiner": result.Starling.JoinerMemory, "memiavl": result.Memiavl.Memory, "sdk": result.SDK.Memory,
		} {
			require.Positive(t, m.Anon, name)
			require.Positive(t, m.Files, name)
			require.Greater(t, m.Peak, m.Anon/2, name)
		}
		require.Positive(t, result.Starling.BesideTree)
	}
}

// Joins with small chunks alternate with joins with chunks of the default limit.
func TestSyncChunkBytes(t *testing.T) {
	out, result, _ := measure[syncbench.Result](t, []string{"within 2× of the same keys in chunks of 1 MiB"},
		"sync", "--keys", "2000", "--repeat", "2", "--against", "", "--chunk-bytes", "5000")
	require.Greater(t, result.Starling.Join.Chunks, 2000*123/5000)
	require.Len(t, result.DefaultChunks.Seconds, 2)
	require.NotContains(t, out, "faster than memiavl")
}

func TestByzantine(t *testing.T) {
	_, result, _ := measure[syncbench.ByzantineResult](t, []string{"Byzantine of 12 peers"},
		"byzantine", "--keys", "30000", "--peers", "12", "--lying", "0,6,11", "--repeat", "1")
	require.Len(t, result.Rows, 3)
	for i, lying := range []int{0, 6, 11} {
		row := result.Rows[i]
		require.Equal(t, lying, row.Lying)
		require.Zero(t, row.Unended, "%d Byzantine peers", lying)
		require.LessOrEqual(t, row.Banned, lying)
		require.Positive(t, row.StarlingS)
		require.Positive(t, row.Ratio)
		require.Greater(t, row.Chunks, 2)
	}
}

func TestHiccup(t *testing.T) {
	_, result, _ := measure[syncbench.HiccupResult](t, []string{"starling, 4 joiners", "sdk-iavl", "p99 of a commit with 4 joiners"},
		"hiccup", "--keys", "10000", "--blocks", "20", "--interval", "1", "--joiners", "0,4", "--rate", "20", "--sdk-blocks", "15")
	require.Len(t, result.Starling, 2)
	require.Len(t, result.SDK, 2)
	for _, row := range append(result.Starling, result.SDK...) {
		require.Positive(t, row.P50MS)
		require.GreaterOrEqual(t, row.P99MS, row.P50MS)
		require.GreaterOrEqual(t, row.MaxMS, row.P99MS)
	}
	require.Equal(t, 20, result.Starling[1].Blocks)
	require.Equal(t, 15, result.SDK[1].Blocks)
	require.Positive(t, result.Starling[0].P99Ratio)
	require.Positive(t, result.Starling[1].Kept.Memory)
}

// All attackers of a kind come and go. The run itself judges what they achieve.
func TestSiege(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("NOT RUN: attackers need separate loopback addresses, as on Linux")
	}
	_, result, _ := measure[syncbench.SiegeResult](t, []string{"sybils", "idle", "no newcomer is kept out"},
		"siege", "--keys", "30000", "--repeat", "1", "--blocks", "30", "--limit", "5", "--kinds", "sybils,idle")
	require.Len(t, result.Kinds, 3)
	require.Positive(t, result.Kinds["sybils"].JoinX)
	require.Zero(t, result.Kinds["sybils"].BlockX)
	require.Positive(t, result.Kinds["idle"].BlockX)
	require.Zero(t, result.Kinds["idle"].JoinX)
	require.Positive(t, result.Kinds["honest"].RateMBS)
}

func TestSiegeOfANetwork(t *testing.T) {
	t.Parallel() // mostly waits for blocks
	_, result, _ := measure[syncbench.SiegeResult](t, nil, "siege", "--kinds", "transactions", "--keys", "2000")
	// 6 of these transactions fit into a block.
	require.GreaterOrEqual(t, result.Kinds["transactions"].TxBlocks, 5)
}

func TestSiegeOfAShardedNetwork(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("NOT RUN: attackers need separate loopback addresses, as on Linux")
	}
	t.Parallel() // mostly waits for blocks
	_, result, figures := measure[syncbench.ShardedResult](t, []string{"claims", "uppers", "no halt above 5 s", "within its budget"},
		"siege", "--sharded", "--quick", "--kinds", "claims,uppers")
	require.Len(t, result.Kinds, 3)
	for kind, row := range result.Kinds {
		positive(t, figures["kind"].(map[string]any)[kind].(map[string]any), "block_p99_x", "halt_s", "witness_p99_x", "join_x", "rss_mb")
		require.Positive(t, row.Blocks, kind)
		require.Positive(t, row.Witnesses, kind)
	}
	require.Len(t, result.Targets, 6)
}

// The run itself checks that the SDK opens the joined state, with the source's hash.
func TestCosmos(t *testing.T) {
	_, result, figures := measure[syncbench.CosmosResult](t, []string{"create + restore over join", "goleveldb, joined", "iavl over starling"},
		"cosmos", "--keys", "20000", "--engines", "goleveldb", "--repeat", "1", "--seed", "3", "--commits", "20", "--stores", "starling; memiavl, log synced; iavl")
	require.Len(t, result.Engines, 1)
	for engine, f := range result.Engines {
		of := figures["engines"].(map[string]any)[engine].(map[string]any)
		positive(t, of, "manifest_ms", "join_s", "sdk_create_s", "sdk_restore_s", "times", "overhead_bytes_per_leaf", "commit_p99_ratio", "served_commit_p99_ratio")
		require.Len(t, f.Commits, 3)
		for mode, c := range f.Commits {
			require.Positive(t, c.P50MS, "%s of %s", mode, engine)
			require.LessOrEqual(t, c.P50MS, c.P99MS)
			require.LessOrEqual(t, c.P50MS, c.BlockP50MS)
		}
		require.Less(t, f.Overhead, 6.5)
		require.Equal(t, f.PlainBytes, f.Bytes, "random bytes are not compressed")
		require.Less(t, f.BytesX, 1.1)
		require.GreaterOrEqual(t, f.Chunks, 3)
		require.Greater(t, f.Bytes, int64(20_000*120))
	}
	require.Len(t, result.Targets, 8)
	require.Contains(t, result.Targets[6].Undecided, "20 blocks")
	require.Len(t, result.Stores, 3)
	for name, f := range result.Stores {
		positive(t, figures["stores"].(map[string]any)[name].(map[string]any), "load_s", "commit_p50_ms", "commit_one_core_p50_ms", "get_ns", "iterate_ns", "proof_us", "open_s")
		require.Greater(t, f.ProofBytes, 500, name)
		require.Len(t, f.Root, 64, name)
	}
}

func TestCosmosRecords(t *testing.T) {
	_, result, _ := measure[syncbench.CosmosResult](t, []string{"sent over SDK snapshot"}, "cosmos", "--keys", "20000", "--engines", "goleveldb", "--repeat", "1", "--records")
	f := result.Engines["goleveldb"]
	require.Less(t, f.Bytes, f.PlainBytes)
	require.Less(t, f.BytesX, 1.1)
	require.Empty(t, result.Stores)
	require.Empty(t, f.Commits)
}

func TestE2E(t *testing.T) {
	t.Parallel() // mostly waits for blocks
	_, _, figures := measure[e2ebench.Result](t, []string{"starling", "kvstore", "tx/s", "latency p99, ms", "at least 0.95"},
		"e2e", "--validators", "2", "--rounds", "1", "--seconds", "2", "--loads", "own", "--rate", "50", "--in-flight", "100", "--timeout-commit", "100ms")
	positive(t, figures, "starling_tps", "kvstore_tps", "ratio")
	require.NotContains(t, figures, "distinct")
}

func TestJoiners(t *testing.T) {
	t.Parallel() // mostly waits for blocks
	_, result, _ := measure[e2ebench.JoinersResult](t, []string{"2 of 2 joiners follow the head of 2 validators"},
		"joiners", "--validators", "2", "--joiners", "2", "--keys", "200", "--rate", "20", "--snapshot-interval", "5", "--seconds", "1", "--timeout-commit", "200ms")
	require.Equal(t, 2, result.Joined)
	require.Positive(t, result.StateBytes)
}

func TestSnapshots(t *testing.T) {
	t.Parallel() // mostly waits for blocks
	_, result, figures := measure[e2ebench.SnapshotsResult](t, []string{"iavl-pausing", "starling-snapshots over iavl-pausing", "iavl-background over iavl", "longest block, ms", "1 of at least 5 rounds"},
		"snapshots", "--validators", "2", "--keys", "2000", "--rounds", "1", "--seconds", "2", "--snapshot-interval", "3", "--in-flight", "100", "--timeout-commit", "100ms")
	require.Len(t, result.Networks, 5)
	for i, n := range result.Networks {
		of := figures["networks"].([]any)[i].(map[string]any)["rounds"].([]any)[0].(map[string]any)
		positive(t, of, "tps", "latency_mean_ms", "longest_ms", "cpu_us")
		require.Len(t, n.CDF, len(e2ebench.Percentiles))
		require.IsNonDecreasing(t, n.CDF)
		r := n.Rounds[0]
		require.GreaterOrEqual(t, len(r.Blocks), 2, n.Name)
		exports := strings.HasPrefix(n.Name, "iavl-")
		require.Equal(t, exports, r.EachS > 0, n.Name)
		if !n.MakesSnapshots {
			require.Zero(t, r.Snapshots, n.Name)
		}
	}
	for _, i := range []harness.Interval{result.Gain, result.GainLatency, result.Ratio, result.Latency, result.Plain, result.Kept, result.KeptPausing, result.KeptBackground} {
		require.Positive(t, i.Median)
	}
}

func TestNewcomer(t *testing.T) {
	t.Parallel() // mostly waits for blocks
	_, result, _ := measure[e2ebench.NewcomerResult](t, []string{"starling-snapshots, 10 ms", "iavl-pausing over starling-snapshots"},
		"newcomer", "--validators", "2", "--keys", "2000", "--rounds", "1", "--snapshot-interval", "6", "--delays", "0,10", "--timeout-commit", "100ms")
	require.Len(t, result.Joins, 2)
	for _, joins := range result.Joins {
		for _, j := range append(joins.Starling, joins.IAVL...) {
			require.Positive(t, j.AfterDiscoveryS)
			require.Greater(t, j.Bytes, int64(2000*120))
		}
		require.Equal(t, joins.Starling[0].Seconds, joins.Starling[0].AfterDiscoveryS)
		require.Greater(t, joins.IAVL[0].Seconds, 5.0, "the discovery")
		require.Greater(t, joins.Ratio.Median, joins.AfterDiscovery.Median)
	}
}

// A false snapshot costs IAVL's joiner the bytes of a state, and Starling's joiner a few chunks.
func TestNewcomerWithAByzantineValidator(t *testing.T) {
	t.Parallel() // mostly waits for blocks
	_, result, _ := measure[e2ebench.NewcomerResult](t, []string{"Byzantine           1 of the validators"},
		"newcomer", "--validators", "3", "--keys", "20000", "--rounds", "1", "--snapshot-interval", "10", "--delays", "0", "--timeout-commit", "100ms", "--lying", "1")
	require.Equal(t, 1, result.Lying)
	const state = 20_000 * 120
	require.Greater(t, result.Joins[0].IAVL[0].Bytes, int64(2*state))
	require.Less(t, result.Joins[0].Starling[0].Bytes, int64(2*state))
}

// A new node fetches a short chain in each of the three ways.
func TestJoin(t *testing.T) {
	t.Parallel() // mostly waits for blocks
	_, result, _ := measure[joinbench.Result](t, []string{"over the transport, TCP"},
		"join", "--blocks", "4", "--block-bytes", "100000", "--value-bytes", "10000", "--rounds", "1", "--profile")
	require.Equal(t, 4, result.Blocks)
	require.Len(t, result.Ways, 3)
	for _, way := range result.Ways {
		require.NotEmpty(t, way.Components, way.Name)
	}
	require.Nil(t, result.RDMAS)
	require.Len(t, result.Targets, 2)
	for _, seconds := range []float64{result.TCPS, result.BlocksyncS, result.Blocksync500S} {
		require.Positive(t, seconds)
	}
}

// The run itself checks all answers.
func TestClient(t *testing.T) {
	t.Parallel() // mostly waits for blocks
	_, result, _ := measure[clientbench.Result](t,
		[]string{"transaction", "get, proved", "Different guarantees", "1 validator of Starling survive 0", "3 members of etcd survive 1 stopped"},
		"client", "--rounds", "1", "--seconds", "1", "--keys", "600", "--range-keys", "20", "--workers", "2", "--validators", "1", "--timeout-commit", "50ms")
	require.Len(t, result.Operations, 10)
	for _, op := range result.Operations {
		require.NotNil(t, op.Starling, op.Name)
		for _, f := range []*clientbench.Figures{op.Starling, op.Etcd} {
			if f == nil {
				continue
			}
			require.Positive(t, f.P50MS, op.Name)
			require.GreaterOrEqual(t, f.P99MS, f.P50MS, op.Name)
			require.Positive(t, f.Rate, op.Name)
		}
	}
	require.Nil(t, result.Operations[4].Etcd, "etcd proves nothing")
}

func TestLatency(t *testing.T) {
	t.Parallel() // mostly waits for blocks
	_, result, figures := measure[clientbench.LatencyResult](t, []string{"starling, lan", "starling, lan, rpc", "kvstore, defaults", "put, one dead", "event p50 at most 5 ms", "kvstore, defaults, regions"},
		"latency", "--rounds", "1", "--seconds", "1", "--keys", "100", "--workers", "2", "--delay", "20ms")
	require.Len(t, result.Stores, 10)
	positive(t, figures, "put_p50_ms", "put_p99_ms", "etcd_put_p50_ms", "kvstore_put_p50_ms", "kvstore_lan_put_p50_ms", "newest_p50_ms", "put_over_kvstore", "wan_over_floor",
		"signed_x", "text_x", "batch32_x", "cpu_x", "gets_x", "proved_gets_x", "range_x")
}

func TestFaults(t *testing.T) {
	t.Parallel() // mostly waits for blocks
	_, result, _ := measure[clientbench.FaultsResult](t, []string{"silent    kvstore", "lying    starling", "accused  starling", "time that a lying validator adds"},
		"faults", "--rounds", "1", "--seconds", "1", "--workers", "2", "--faults", "silent,lying,accused")
	require.Len(t, result.Faults, 4)
	for _, f := range result.Faults {
		require.Positive(t, f.Starling.Rate, f.Name)
		require.Equal(t, f.Name != "accused", f.KVStore != nil, f.Name)
	}
	require.Len(t, result.Targets, 2)
}

// The command keeps what it has measured: a second run draws the same picture.
func TestPapers(t *testing.T) {
	if testing.Short() {
		t.Skip("a whole run")
	}
	dir := t.TempDir()
	for range 2 {
		out, err := run(t.Context(), "papers", "--quick", "--only", "chainkv/cache", "--out", dir)
		require.NoError(t, err)
		require.Contains(t, out, "throughput 2.72 to 6.51 % higher")
		for _, name := range []string{"chainkv-cache.json", "chainkv-cache.svg", "index.html"} {
			require.FileExists(t, filepath.Join(dir, name))
		}
	}
	_, err := run(t.Context(), "papers", "--only", "chainkv/nothing", "--out", dir)
	require.ErrorContains(t, err, "chainkv/cache")
}

func TestTimeline(t *testing.T) {
	t.Parallel() // mostly waits for blocks
	_, result, _ := measure[clientbench.TimelineResult](t, []string{"1 validator", "4 validators, 5 ms apart", "precommit", "left out"},
		"timeline", "--seconds", "1", "--workers", "2", "--validators", "1,4", "--delays", "5")
	require.Len(t, result.Lines, 2)
	for _, l := range result.Lines {
		require.Positive(t, l.Puts+l.Left) // a busy machine may leave all out
		require.Equal(t, l.Puts > 0, l.PutMS > 0)
		require.Len(t, l.Steps, 8)
	}
}

// The run itself checks that no watcher misses an event.
func TestWatch(t *testing.T) {
	t.Parallel() // mostly waits for blocks
	_, result, _ := measure[clientbench.WatchResult](t,
		[]string{"none was missed", "40 watchers of one key each and 2 of everything", "p99 of the time between blocks", "events a second"},
		"watch", "--rounds", "1", "--seconds", "2", "--watchers", "40", "--all", "2", "--changes", "200", "--heights", "20", "--timeout-commit", "100ms")
	require.GreaterOrEqual(t, result.CatchUp.Heights, 20)
	require.Positive(t, result.CatchUp.PerSecond[0])
	require.Positive(t, result.Events)
	require.Zero(t, result.Events%3, "three watchers see each change: one of its key and two of all keys")
	require.Len(t, result.Targets, 2)
}

// The run itself checks that all nodes have the same app hashes.
func TestDSM(t *testing.T) {
	t.Parallel() // mostly waits for blocks
	_, result, figures := measure[dsmbench.Result](t,
		[]string{"transfers, local", "5 % deletions, paged", "multiproof, r 12", "multiproofs of age", "storage nodes", "round trip, prefetch", "a move of 1 MB", "a start after SIGKILL with 20,000 keys", "join, without CometBFT", "the figures mean nothing"},
		"dsm", "--quick", "--seed", "3")
	positive(t, figures, "keys", "r", "window", "tps_local", "tps_app", "tps_paged", "raw_bytes_tx", "multiproof_bytes_tx_cold", "multiproof_bytes_tx", "witness_reduction", "stale_rate",
		"witness_ops_s", "witness_cpu_us", "memory_ratio", "join_s", "join_bytes", "header_bytes", "put_s", "together_cpu_ratio",
		"range_disk_ratio", "bytes_per_changed", "start_s", "storage_rss_mb", "move_s", "move_copy_s", "move_block_p99_x")
	require.Zero(t, result.Moves.Failed, "writes failed during moves")
	require.Equal(t, []int{1, 3}, result.Shards)
	require.Zero(t, result.MissRate)
	require.Less(t, result.MultiproofBytesTx, result.MultiproofBytesTxCold)
	require.Less(t, result.MultiproofBytesTxCold, result.RawBytesTx)
	for _, row := range result.ShardRows {
		require.Positive(t, row.CPUMicros, row.Shards)
		require.Positive(t, row.PutS, row.Shards)
	}
	require.Len(t, result.TogetherRows, 1)
	require.Equal(t, [2]int{1, 3}, [2]int{result.TogetherRows[0].Shards, result.TogetherRows[0].Ranges})
	require.Positive(t, result.TogetherRows[0].ApartMicros)
	require.Positive(t, result.Join.Blocks)
	require.Len(t, result.Starts, 2)
	require.Positive(t, result.Starts[1].Seconds)
	require.Len(t, result.Prefetch, 2)
	for _, row := range result.Prefetch {
		require.Positive(t, row.KeysS, row.DelayMS)
		require.Positive(t, row.Ahead.Bytes, row.DelayMS)
	}
}

// The run itself checks that no transaction fails, and that a proof of the gateway is right.
func TestPrograms(t *testing.T) {
	t.Parallel() // mostly waits for blocks
	_, result, figures := measure[programsbench.Result](t, []string{"application alone", "15 %, sharded", "100 %, local", "100 %, named", "proved gets", "gateways", "paged", "the figures mean nothing"},
		"programs", "--quick", "--seed", "3")
	positive(t, figures, "erc20_tps", "gas_used", "gas_named", "gateway_gets_s", "wan_ratio", "tps_over_local_r12", "over_paged")
	require.Contains(t, figures, "rounds_per_block")
	require.Contains(t, figures, "free_blocks")
	require.Len(t, result.Grid, 2, "validators with the whole state, and r 12")
	require.Len(t, result.Grid[1].Cells, 2)
	for _, cell := range result.Grid[1].Cells {
		require.Positive(t, cell.StorageRequestsS)
		require.Positive(t, cell.TPS.Median, cell.Gateways)
		require.Positive(t, cell.GatewaysMicros, cell.Gateways)
	}
	require.NotEmpty(t, result.Reads)
	for _, row := range result.Reads {
		require.Positive(t, row.Moves)
		require.Positive(t, row.Codes[0])
	}
	require.Contains(t, figures, "mispredicted")
	for _, failed := range result.Failed {
		require.Contains(t, failed, "reads without lists: ") // they may wait for more than a minute
	}
	require.Len(t, result.App, 3)
	require.Len(t, result.Network, 5)
}

func TestInterrupted(t *testing.T) {
	for _, args := range [][]string{
		{"tree", "--keys", "3000000"}, {"storage", "--keys", "1000000"}, {"sync", "--keys", "5000000", "--against", ""}, {"dsm"},
	} {
		dir := t.TempDir()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := run(ctx, append(args, "--dir", dir, "--json", filepath.Join(dir, "x.json"))...)
		cancel()
		require.ErrorIs(t, err, harness.ErrInterrupted, args[0])
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, left, args[0])
	}
}

// A refusal names the flag and its range, if it has one, and then the command that shows an
// example.
func TestRefusals(t *testing.T) {
	for command, cases := range map[string][][]string{ // arguments, and a part of the error
		"tree": {
			{"--keys=10", "--keys is 10, it must be from 2000 to"}, {"--batch=0", "--batch is 0"}, {"--against=merk", `"merk", it takes memiavl, iavl`},
			{"--against=iavl,iavl", "iavl twice"}, {"--export-rate=NaN", "--export-rate is NaN"}, {"--json=no/such/folder/x.json", "--json"},
			{"--dir=no/such/folder", "--dir"}, {"a", "unknown command"},
		},
		"storage": {
			{"--blocks=0", "--blocks is 0"}, {"--txs-per-block=1", "--txs-per-block is 1"}, {"--budget=104857600 --keys=10000", "4 times"},
			{"--keys=3000", "more --keys"}, {"--node-share=NaN", "--node-share is NaN"}, {"--queries=0", "--queries is 0"},
			{"--against=rocksdb", `"rocksdb", it takes mixed, goleveldb`}, {"--only=all", `"all"`},
		},
		"sync": {
			{"--repeat=0", "--repeat is 0"}, {"--sdk-repeat=0", "--sdk-repeat is 0"}, {"--chunk-bytes=0", "--chunk-bytes is 0"},
			{"--keys=2000 --against=sdk --sdk=no/such/program", "no/such/program"},
		},
		"byzantine": {
			{"--lying=80", "--lying has 80 of 80 peers"}, {"--lies=white", `"white", it takes damaged`}, {"--lies=", "--lies is empty"},
			{"--peers=0", "--peers is 0"}, {"--limit=NaN", "--limit is NaN"},
		},
		"hiccup": {{"--rate=NaN", "--rate is NaN"}, {"--joiners=99", "--joiners has 99"}, {"--against=memiavl", `"memiavl", it takes sdk`}},
		"siege": {
			{"--kinds=", "--kinds is empty, it takes dawdle"}, {"--kinds=rude", `"rude"`}, {"--sharded --kinds=sybils", `"sybils", it takes claims`},
			{"--kinds=claims", `"claims", it takes dawdle`}, {"--quick", "--quick needs --sharded"}, {"--sharded --seconds=0", "--seconds is 0"},
		},
		"cosmos": {{"--keys=0", "--keys is 0"}, {"--engines=rocksdb", `"rocksdb"`}, {"--engines= --stores=", "both empty"}, {"--commits=-1", "--commits is -1"}},
		"e2e":    {{"--in-flight=5000", "--in-flight is 5000"}, {"--indexer=psql", `"psql", it must be kv or null`}, {"--loads=", "--loads names no load"}, {"--kvstore=noop", `"noop"`}},
		"snapshots": {
			{"--networks=", "--networks names no network"}, {"--networks=kvstore", `"kvstore", it takes iavl, iavl-pausing`}, {"--keys=10", "--keys is 10"},
			{"--delay=2s", "--delay is 2s"}, {"--in-flight=5000", "--in-flight is 5000"},
		},
		"newcomer": {
			{"--delays=2000", "--delays has 2000"}, {"--keys=10", "--keys is 10"}, {"--validators=1", "--validators is 1"},
			{"--snapshot-interval=5", "--snapshot-interval is 5"}, {"--in-flight=1", "unknown flag"}, {"--lying=2", "--lying is 2"},
		},
		"joiners":  {{"--joiners=0", "--joiners is 0"}, {"--starlingd=no/such/program", "no/such/program"}},
		"join":     {{"--blocks=1", "--blocks is 1"}, {"--block-bytes=2048 --value-bytes=4096", "--value-bytes is 4096"}},
		"timeline": {{"--json=no/such/folder/x.json", "--json: cannot write the result"}, {"--validators=0", "--validators"}},
		"faults":   {{"--faults=dead", `"dead", it takes silent`}, {"--slow=0s", "--slow is 0s"}},
		"relay":    {{"--blocks=51", "--blocks is 51"}, {"--rates=5", "--rates has 5"}, {"--block-bytes=1KiB", "--block-bytes has 1KiB"}, {"--sends=0", "--sends is 0"}},
		"client":   {{"--value-bytes=1", "--value-bytes is 1, it must be from 16"}, {"--starlingd=no/such/program --etcdstore=none", "no/such/program"}},
		"watch":    {{"--changes=5", "--tx-changes"}, {"--heights=100000", "--heights is 100000"}},
		"dsm":      {{"--retain=17", "--retain is 17"}, {"--shards=0", "--shards has 0"}, {"--depths=20", "--depths has 20"}, {"--phases=", "--phases is empty"}, {"--paged-mb=1", "--paged-mb is 1"}, {"--accounts=10", "--accounts has 10"}},
		"programs": {{"--workers=20 --accounts=10", "--workers is 20"}, {"--phases=", "--phases is empty"}, {"--shares=101", "--shares has 101"}},
		"transport": {
			{"--sizes=64KB", `"64KB"`}, {"--sizes=8MiB", "--sizes has 8MiB"}, {"--sizes=4194304MiB", "--sizes has 4194304MiB"}, {"--sizes=512", "--sizes has 512B"}, {"--peers=9", "--peers has 9"},
			{"--limit=1ms", "--limit is 1ms"}, {"--devices=a,b,c", `"a,b,c"`}, {"--guest --devices=rxe0", "devices and programs of its own"},
		},
	} {
		for _, c := range cases {
			_, err := run(t.Context(), append([]string{command}, strings.Split(c[0], " ")...)...)
			require.ErrorContains(t, err, c[1], "%s %s", command, c[0])
		}
	}
}

// The help of each benchmark is one sentence, its flags, and an example that passes its own checks.
func TestHelp(t *testing.T) {
	for _, c := range newRoot().Commands() {
		if c.Hidden || c.Example == "" {
			continue
		}
		out, err := run(t.Context(), c.Name(), "--help")
		require.NoError(t, err)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		require.Equal(t, c.Short, lines[0])
		example := strings.Fields(lines[len(lines)-1])
		require.Equal(t, []string{"go", "run", ".", c.Name()}, example[:4])
		require.NoError(t, c.ParseFlags(example[4:]), c.Name())
	}
}
