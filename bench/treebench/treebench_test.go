package treebench

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/workload"
	"github.com/starling-kv/starling/internal/child"
)

func sample() *Result {
	r := &Result{
		Keys: 1_000_000, Batch: 10_000, Versions: 2000, Seed: 1, ExportRate: 32,
		Starling: &Figures{
			LoadS: 2, CommitP50MS: 1, CommitP99MS: 2, CommitOneCoreP50MS: 2, GetNS: 900, ProofUS: 5, ExportS: 0.1, ImportS: 0.4, BytesPerKey: 250,
			IndexGetNS: 200, IndexBytesPerKey: 330,
			CommitP99DuringExportMS: 3, Versions: 2000,
		},
		Memiavl: &Figures{
			LoadS: 12, CommitP50MS: 12, CommitP99MS: 30, CommitOneCoreP50MS: 9, GetNS: 1800, ProofUS: 15, ExportS: 2, ImportS: 3, BytesPerKey: 800,
			CommitP99DuringExportMS: 78, Versions: 2000,
		},
		Floor: Floor{Hash: hashCost{Kernel: "avx512", Inner: 30, Leaf: 31, Value: 32, Key: 16}, ReadNS: 150, ReadMiB: 240},
	}
	r.Floor.hashes(1_000_000)
	r.Floor.walk(1_000_000, 250_000_000)
	r.Targets = r.targets()
	return r
}

func TestTargets(t *testing.T) {
	got := map[string]string{}
	for _, target := range sample().Targets {
		got[target.Name] = map[bool]string{true: "met", false: "not met"}[target.Met] + " " + target.Measure + target.Undecided
	}
	require.Equal(t, map[string]string{
		"commit at least 7× memiavl":                                              "met 12×",
		"commit with one core each at least 5× memiavl":                           "not met 4.5×",
		"at least 500,000 changes per second with one core":                       "met 500,000",
		"commit within 4× of the hash floor (all cores; the floor is one core's)": "met 2.75×",
		"load at least 5× memiavl":                                                "met 6×",
		"get at least 2.6× memiavl":                                               "not met 900 ns, 2×",
		"get by the index at least 8× memiavl":                                    "met 200 ns, 9×",
		"proof at least 3× memiavl":                                               "met 3×",
		"export and verified import at least 8× memiavl":                          "not met 10×" + undecidedExport,
		"memory at most 300 bytes a key":                                          "met 250 bytes",
		"memory with the index at most 325 bytes a key":                           "not met 330 bytes",
		"commit p99 during an export at most 1.3× without":                        "not met 1.5×",
	}, got)
}

func TestTable(t *testing.T) {
	var out bytes.Buffer
	sample().Print(&out)
	lines := strings.Split(out.String(), "\n")
	require.Equal(t, []string{"1,000,000", "keys", "starling", "memiavl", "×", "floor", "×"}, strings.Fields(lines[0]))
	require.Equal(t, []string{"load,", "s", "2.00", "12.00", "6"}, strings.Fields(lines[1]))
	require.Equal(t, []string{"commit", "p50,", "ms", "1.00", "12.00", "12", "0.36", "2.75"}, strings.Fields(lines[2]))
	require.Equal(t, []string{"on", "one", "core", "p50,", "ms", "2.00", "9.00", "4.5", "0.36", "5.5"}, strings.Fields(lines[3]))
	require.Contains(t, out.String(), "not met   commit p99 during an export at most 1.3× without: 1.5×")
	require.Contains(t, out.String(), "avx512")
	require.NotContains(t, out.String(), "%!", "a format does not match its arguments")
}

func TestJSONLeavesOutMissingPeers(t *testing.T) {
	b, err := json.Marshal(sample())
	require.NoError(t, err)
	var back Result
	require.NoError(t, json.Unmarshal(b, &back))
	require.Equal(t, *sample(), back)
	require.NotContains(t, string(b), `"iavl":`)
	require.NotContains(t, string(b), `"memiavl_mapped":`)
	require.Contains(t, string(b), `"memiavl":{"load_s":12,"commit_p50_ms":12,`)
}

// 10,052 inner nodes were counted for 1,000 random operations at a million keys, and 13,336 at ten
// million keys (AVL trees are slightly deeper than balanced trees).
func TestDistinctInner(t *testing.T) {
	require.InEpsilon(t, 10_052, distinctInner(1_000_000, 1000), 0.08)
	require.InEpsilon(t, 13_336, distinctInner(10_000_000, 1000), 0.08)
	require.InDelta(t, 7, distinctInner(8, 1000), 1e-9)
	require.InDelta(t, 3, distinctAbove(2, 1000, 100_000), 1e-9)
}

func TestFloorMeasures(t *testing.T) {
	cost := measureHash()
	require.NotEmpty(t, cost.Kernel)
	for _, ns := range []float64{cost.Inner, cost.Leaf, cost.Value, cost.Key} {
		require.Positive(t, ns)
	}
	require.Positive(t, readLatency(1<<20))
	require.Positive(t, readLatency(0))
	require.GreaterOrEqual(t, l2Bytes(), 64<<10)
}

func TestMemoryGrowsWithWhatIsHeld(t *testing.T) {
	before := measureMemory()
	held := make([]byte, 64<<20)
	for i := range held {
		held[i] = 1
	}
	now := measureMemory()
	require.GreaterOrEqual(t, now.Heap-before.Heap, int64(60<<20))
	if now.Resident > 0 {
		require.GreaterOrEqual(t, now.Resident-before.Resident, int64(60<<20))
	}
	require.Equal(t, byte(1), held[len(held)-1])
}

func TestRootsOfPeersMustAgree(t *testing.T) {
	type peers = []*entrant
	of := func(name string, roots ...string) *entrant {
		return &entrant{Process: &harness.Process{Name: name}, roots: roots}
	}
	s := of("starling", "x")
	require.NoError(t, sameRoots(peers{s}))
	require.NoError(t, sameRoots(peers{s, of("iavl", "a"), of("memiavl", "a", "b")}))
	require.ErrorContains(t, sameRoots(peers{s, of("iavl", "a", "c"), of("memiavl", "a", "b")}), "version 2")
	require.ErrorContains(t, sameRoots(peers{s, of("memiavl", "a"), of("iavl", "a"), of("mapped", "c")}), "version 1")
}

// A child processes requests, and continues after a failed one.
func TestServe(t *testing.T) {
	var in, out bytes.Buffer
	lines := json.NewEncoder(&in)
	require.NoError(t, lines.Encode(begin{
		Name: "starling", Spec: workload.Spec{Seed: 1, Keys: 2000, Batch: 1500}, Versions: 10, ExportRate: 1000, Dir: t.TempDir(),
	}))
	for _, r := range []request{
		{Op: opLoad, N: 5}, {Op: "dance"}, {Op: opVersions, N: 3, Export: true}, {Op: opProve, N: 30}, {Op: opExport}, {Op: opCheck},
	} {
		require.NoError(t, lines.Encode(r))
	}
	require.NoError(t, Serve(&in, &out))
	var answers []answer
	for d := json.NewDecoder(&out); d.More(); {
		var a child.Reply[answer]
		require.NoError(t, d.Decode(&a))
		require.Equal(t, len(answers) == 2, a.Error != "", a.Error)
		answers = append(answers, a.Answer)
	}
	require.Len(t, answers, 7)
	require.Len(t, answers[1].Nanos, 2, "batches of the load")
	require.Len(t, answers[3].Roots, 3)
	require.Equal(t, 5, answers[3].Step)
	require.Equal(t, 2000+3*(workload.Inserts-workload.Deletes), answers[3].Keys)
	require.Equal(t, verifiedProofs, answers[4].Verified)
	require.Len(t, answers[5].Nanos, 2)
}
