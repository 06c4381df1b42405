package main

import (
	"context"
	"encoding/json"
	"github.com/starling-kv/starling/bench/harness"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/bench/storagebench"
)

// Every part runs on a small chain, every cell is there and sane. That every read has the right
// answer is part of each run: it ends with an error otherwise.
func TestStorage(t *testing.T) {
	long(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "storage.json")
	out, err := run(t.Context(), "storage", "--keys", "9000", "--blocks", "6", "--txs-per-block", "100", "--queries", "60",
		"--seed", "3", "--json", file, "--dir", dir, "--cold")
	require.NoError(t, err)
	for _, text := range []string{"goleveldb", "+ zones", "+ key order", "+ cache", "+ no log", "10:0", "0:10", "recovery", "saturation", "paged  ", "writes at least 2× mixed"} {
		require.Contains(t, out, text)
	}
	require.NotContains(t, out, "%!", "a format does not fit its arguments")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "databases left behind")

	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var result storagebench.Result
	require.NoError(t, json.Unmarshal(b, &result))
	var names []string
	for _, c := range result.Writes {
		names = append(names, c.Contestant)
		require.Positive(t, c.BlocksPerS, c.Contestant)
		require.Greater(t, c.WriteAmplification, 0.9, "%s wrote less than it was given", c.Contestant)
		require.GreaterOrEqual(t, c.RequestBytes, c.LogicalBytes-c.LogicalBytes/10, c.Contestant)
		require.Greater(t, c.Space, c.LogicalBytes/2, c.Contestant)
		p := c.Plan
		budget := result.Budget
		if strings.HasSuffix(c.Contestant, "tuned") {
			budget = 512 << 20
		}
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
	require.Positive(t, result.Commit.DurableP50)
	require.Positive(t, result.Commit.DurableRate)
	require.Equal(t, 6, result.Commit.Blocks)
	require.Positive(t, result.Commit.ReclaimMax)
	require.Positive(t, result.WriteRatioInterval.Median)

	p := result.Paged
	for name, figure := range map[string]float64{
		"commit": p.CommitCPUMS, "in memory": p.MemoryCommitCPUMS, "pages": p.PagesPerCommit, "get": p.GetUS, "absent": p.AbsentUS, "proof": p.ProofUS,
		"mixed": p.MixedGetUS,
	} {
		require.Positive(t, figure, name)
	}
	require.LessOrEqual(t, p.PagesPerCommit, 200.0, "a page for each change and its neighbours")

	var written map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(b, &written))
	for _, key := range []string{"write_ratio", "write_ratio_tuned", "write_ratio_to_tuned", "read_ratio_acc", "read_ratio_tx", "read_cpu_ratio_acc", "read_cpu_ratio_tx", "write_amplification", "sgc_gain", "recovery_s"} {
		var figure float64
		require.NoError(t, json.Unmarshal(written[key], &figure), key)
		require.Positive(t, figure, key)
	}
}

func TestStorageOnly(t *testing.T) {
	out, err := run(t.Context(), "storage", "--keys", "9000", "--only", "recovery", "--against", "")
	require.NoError(t, err)
	require.Contains(t, out, "recovery")
	require.NotContains(t, out, "mixed")
}

func TestStorageInterrupted(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "storage.json")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := run(ctx, "storage", "--keys", "1000000", "--dir", dir, "--json", file)
	require.ErrorIs(t, err, harness.ErrInterrupted)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestStorageRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"keys":      {[]string{"--keys", "10"}, []string{"--keys is 10", "2000"}},
		"blocks":    {[]string{"--blocks", "0"}, []string{"--blocks is 0"}},
		"txs":       {[]string{"--txs-per-block", "1"}, []string{"--txs-per-block is 1"}},
		"budget":    {[]string{"--budget", "100", "--keys", "10000"}, []string{"4 times"}},
		"no budget": {[]string{"--keys", "3000"}, []string{"more --keys"}},
		"share":     {[]string{"--node-share", "NaN"}, []string{"--node-share is NaN"}},
		"queries":   {[]string{"--queries", "0"}, []string{"--queries is 0"}},
		"peer":      {[]string{"--against", "rocksdb"}, []string{`"rocksdb"`, "mixed", "goleveldb"}},
		"twice":     {[]string{"--against", "mixed,mixed"}, []string{"mixed twice"}},
		"part":      {[]string{"--only", "all"}, []string{`"all"`, "recovery"}},
		"json":      {[]string{"--json", "no/such/folder/x.json"}, []string{"--json", "folder"}},
		"dir":       {[]string{"--dir", "no/such/folder"}, []string{"--dir"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := run(t.Context(), append([]string{"storage"}, c.args...)...)
			require.Error(t, err)
			for _, text := range c.want {
				require.ErrorContains(t, err, text)
			}
		})
	}
}

func TestStorageHelpEndsInAnExample(t *testing.T) {
	out, err := run(t.Context(), "storage", "--help")
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Equal(t, "  go run . storage --only recovery --keys 10000000", lines[len(lines)-1])
	require.NotContains(t, out, storagebench.ChildCommand)
}
