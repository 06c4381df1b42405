package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/bench/syncbench"
)

// That the SDK opens what was joined, with the source's hash, is part of the run.
func TestCosmos(t *testing.T) {
	long(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "cosmos.json")
	out, err := run(t.Context(), "cosmos", "--keys", "20000", "--repeat", "1", "--seed", "3", "--commits", "20", "--stores", "starling; memiavl, log in commit; iavl", "--json", file, "--dir", dir)
	require.NoError(t, err)
	require.Contains(t, out, "create + restore over join")
	require.NotContains(t, out, "%!", "a format does not fit its arguments")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "databases left behind")
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var result syncbench.CosmosResult
	require.NoError(t, json.Unmarshal(b, &result))
	require.Len(t, result.Engines, 2)
	for engine, f := range result.Engines {
		for name, figure := range map[string]float64{"manifest": f.ManifestMS, "join": f.JoinS, "create": f.SDKCreateS, "restore": f.SDKRestoreS, "times": f.Times} {
			require.Positive(t, figure, "%s of %s", name, engine)
		}
		require.Positive(t, f.Overhead)
		require.Positive(t, f.CommitP99, engine)
		require.Positive(t, f.ServedP99, engine)
		require.Len(t, f.Commits, 3)
		for mode, c := range f.Commits {
			require.Positive(t, c.P50MS, "%s of %s", mode, engine)
			require.LessOrEqual(t, c.P50MS, c.P99MS)
			require.LessOrEqual(t, c.P50MS, c.BlockP50MS)
		}
		require.Less(t, f.Overhead, 6.5)
		require.GreaterOrEqual(t, f.Chunks, 3)
		require.Greater(t, f.Bytes, int64(20_000*120))
	}
	require.Contains(t, out, "goleveldb, joined")
	require.Contains(t, out, "iavl over starling")
	require.Len(t, result.Stores, 3)
	for name, f := range result.Stores {
		for figure, value := range map[string]float64{"load": f.LoadS, "commit": f.CommitP50MS, "one core": f.OneCoreMS, "get": f.GetNS, "iterate": f.IterateNS, "proof": f.ProofUS, "open": f.OpenS} {
			require.Positive(t, value, "%s of %s", figure, name)
		}
		require.Greater(t, f.ProofBytes, 500, name)
		require.Len(t, f.Root, 64, name)
	}
	for _, args := range [][]string{{"--keys", "0"}, {"--stores", "rocksdb"}, {"--keys", "100"}, {"--engines", "rocksdb"}, {"--engines", "", "--stores", ""}, {"--repeat", "0"}, {"--commits", "-1"}} {
		_, err := run(t.Context(), append([]string{"cosmos"}, args...)...)
		require.ErrorContains(t, err, "--help' shows examples")
	}
}
