package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/syncbench"
)

// All contestants join a few keys; that each has the right state at the end is part of the run.
func TestSync(t *testing.T) {
	long(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "sync.json")
	out, err := run(t.Context(), "sync", "--keys", "30000", "--repeat", "3", "--sdk-repeat", "2", "--seed", "3", "--json", file, "--dir", dir)
	require.NoError(t, err)
	for _, text := range []string{"starling", "memiavl", "sdk-iavl", "floor", "join, s", "at least 60× faster than the SDK's store restores"} {
		require.Contains(t, out, text)
	}
	require.NotContains(t, out, "%!", "a format does not fit its arguments")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "databases left behind")

	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var written map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(b, &written))
	require.JSONEq(t, "30000", string(written["keys"]))
	for _, key := range []string{"starling_s", "sdk_restore_s", "sdk_create_s", "memiavl_s", "floor_s", "cpu_s", "bytes", "rss_bytes"} {
		var figure float64
		require.NoError(t, json.Unmarshal(written[key], &figure), key)
		require.Positive(t, figure, key)
	}
	var result syncbench.Result
	require.NoError(t, json.Unmarshal(b, &result))
	require.Len(t, result.Starling.Seconds, 3)
	require.Len(t, result.Memiavl.Seconds, 3)
	require.Len(t, result.SDK.Seconds, 2)
	j := result.Starling.Join
	require.EqualValues(t, 30_000, j.Keys)
	require.Greater(t, j.Chunks, 2)
	require.Positive(t, j.ManifestS)
	require.GreaterOrEqual(t, j.FetchedS, j.ManifestS)
	require.GreaterOrEqual(t, j.DurableS, j.FetchedS)
	require.Zero(t, j.Banned)
	const leaf = 1 + 1 + 20 + 1 + 100
	require.Greater(t, result.Bytes, int64(30_000*leaf))
	require.InDelta(t, max(result.Floor.LoopbackS, result.Floor.HashesS, result.Floor.DiskS), result.FloorS, 1e-9, "of physics only")
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

// Small chunks are joined beside chunks of the default limit.
func TestSyncChunkBytes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sync.json")
	out, err := run(t.Context(), "sync", "--keys", "2000", "--repeat", "2", "--against", "", "--chunk-bytes", "5000", "--json", file)
	require.NoError(t, err)
	require.Contains(t, out, "within 2× of the same keys in chunks of 1 MiB")
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var result syncbench.Result
	require.NoError(t, json.Unmarshal(b, &result))
	require.Greater(t, result.Starling.Join.Chunks, 2000*123/5000)
	require.Len(t, result.DefaultChunks.Seconds, 2)
}

func TestSyncAlone(t *testing.T) {
	out, err := run(t.Context(), "sync", "--keys", "2000", "--repeat", "1", "--against", "")
	require.NoError(t, err)
	require.NotContains(t, out, "SDK's store:")
	require.NotContains(t, out, "faster than memiavl")
}

func TestSyncInterrupted(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "sync.json")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := run(ctx, "sync", "--keys", "5000000", "--against", "", "--dir", dir, "--json", file)
	require.ErrorIs(t, err, harness.ErrInterrupted)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestByzantine(t *testing.T) {
	long(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "byzantine.json")
	out, err := run(t.Context(), "byzantine", "--keys", "30000", "--peers", "12", "--lying", "0,6,11", "--repeat", "1", "--json", file, "--dir", dir)
	require.NoError(t, err)
	require.Contains(t, out, "of 12 peers lie")
	require.NotContains(t, out, "%!", "a format does not fit its arguments")
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var result syncbench.ByzantineResult
	require.NoError(t, json.Unmarshal(b, &result))
	require.Len(t, result.Rows, 3)
	for i, lying := range []int{0, 6, 11} {
		row := result.Rows[i]
		require.Equal(t, lying, row.Lying)
		require.Zero(t, row.Unended, "%d liars", lying)
		require.LessOrEqual(t, row.Banned, lying)
		require.Positive(t, row.StarlingS)
		require.Positive(t, row.Ratio)
		require.Greater(t, row.Chunks, 2)
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "databases left behind")
}

func TestHiccup(t *testing.T) {
	long(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "hiccup.json")
	out, err := run(t.Context(), "hiccup", "--keys", "10000", "--blocks", "20", "--interval", "1", "--joiners", "0,4", "--rate", "20",
		"--sdk-blocks", "15", "--json", file, "--dir", dir)
	require.NoError(t, err)
	for _, text := range []string{"starling, 4 joiners", "sdk-iavl", "p99 of a commit with 4 joiners"} {
		require.Contains(t, out, text)
	}
	require.NotContains(t, out, "%!", "a format does not fit its arguments")
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var result syncbench.HiccupResult
	require.NoError(t, json.Unmarshal(b, &result))
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
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "databases left behind")
}

// All attackers of a kind come and go; what they achieve is the run's to say.
func TestSiege(t *testing.T) {
	long(t)
	if runtime.GOOS != "linux" {
		t.Skip("NOT RUN: attackers need loopback addresses of their own, as Linux has them")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "siege.json")
	out, err := run(t.Context(), "siege", "--keys", "30000", "--repeat", "1", "--blocks", "10", "--limit", "5", "--kinds", "sybils,idle", "--json", file, "--dir", dir)
	require.NoError(t, err)
	for _, text := range []string{"sybils", "idle", "no newcomer is kept out"} {
		require.Contains(t, out, text)
	}
	require.NotContains(t, out, "%!", "a format does not fit its arguments")
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var result syncbench.SiegeResult
	require.NoError(t, json.Unmarshal(b, &result))
	require.Len(t, result.Kinds, 3)
	require.Positive(t, result.Kinds["sybils"].JoinX)
	require.Zero(t, result.Kinds["sybils"].BlockX)
	require.Positive(t, result.Kinds["idle"].BlockX)
	require.Zero(t, result.Kinds["idle"].JoinX)
	require.Positive(t, result.Kinds["honest"].RateMBS)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "databases left behind")
}

func TestSyncRefusals(t *testing.T) {
	for name, c := range map[string]struct{ args, want []string }{
		"keys":     {[]string{"sync", "--keys", "10"}, []string{"--keys is 10", "2000"}},
		"repeat":   {[]string{"sync", "--repeat", "0"}, []string{"--repeat is 0"}},
		"restores": {[]string{"sync", "--sdk-repeat", "0"}, []string{"--sdk-repeat is 0"}},
		"chunks":   {[]string{"sync", "--chunk-bytes", "0"}, []string{"--chunk-bytes is 0"}},
		"peer":     {[]string{"sync", "--against", "iavl"}, []string{`"iavl"`, "sdk", "memiavl"}},
		"twice":    {[]string{"sync", "--against", "sdk,sdk"}, []string{"sdk twice"}},
		"program":  {[]string{"sync", "--keys", "2000", "--against", "sdk", "--sdkstore", "no/such/program"}, []string{"no/such/program"}},
		"json":     {[]string{"sync", "--json", "no/such/folder/x.json"}, []string{"--json", "folder"}},
		"dir":      {[]string{"sync", "--dir", "no/such/folder"}, []string{"--dir"}},
		"all lie":  {[]string{"byzantine", "--lying", "80"}, []string{"--lying names 80", "honest"}},
		"lie":      {[]string{"byzantine", "--lies", "white"}, []string{`"white"`, "damaged"}},
		"no lies":  {[]string{"byzantine", "--lies", ""}, []string{"--lies names none"}},
		"peers":    {[]string{"byzantine", "--peers", "0"}, []string{"--peers is 0"}},
		"limit":    {[]string{"byzantine", "--limit", "NaN"}, []string{"--limit is NaN"}},
		"blocks":   {[]string{"hiccup", "--blocks", "0"}, []string{"--blocks is 0"}},
		"rate":     {[]string{"hiccup", "--rate", "NaN"}, []string{"--rate is NaN"}},
		"joiners":  {[]string{"hiccup", "--joiners", "99"}, []string{"--joiners names 99"}},
		"interval": {[]string{"hiccup", "--interval", "-1"}, []string{"--interval is -1"}},
		"kinds":    {[]string{"siege", "--kinds", ""}, []string{"--kinds names none", "dawdle"}},
		"kind":     {[]string{"siege", "--kinds", "rude"}, []string{`"rude"`, "pending"}},
		"memiavl":  {[]string{"hiccup", "--against", "memiavl"}, []string{`"memiavl"`, "sdk"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := run(t.Context(), c.args...)
			require.Error(t, err)
			for _, text := range c.want {
				require.ErrorContains(t, err, text)
			}
		})
	}
}

func TestSyncHelpEndsInAnExample(t *testing.T) {
	for command, example := range map[string]string{
		"sync":      "  go run . sync --against memiavl --repeat 9",
		"byzantine": "  go run . byzantine --keys 100000 --peers 20 --lying 0,6,19",
		"siege":     "  go run . siege --keys 100000 --repeat 1 --blocks 30",
		"hiccup":    "  go run . hiccup --keys 100000 --blocks 100 --sdk-blocks 30",
	} {
		out, err := run(t.Context(), command, "--help")
		require.NoError(t, err)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		require.Equal(t, example, lines[len(lines)-1])
		require.NotContains(t, out, syncbench.ChildCommand)
	}
}
