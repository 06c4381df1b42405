package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/bench/dsmbench"
	"github.com/starling-kv/starling/bench/harness"
)

// That all come to the same app hashes is part of the run.
func TestDSM(t *testing.T) {
	long(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "dsm.json")
	out, err := run(t.Context(), "dsm", "--quick", "--seed", "3", "--json", file, "--dir", dir)
	require.NoError(t, err)
	for _, text := range []string{"transfers, local", "5 % deletions, paged", "bag, r 12", "bags of age", "storage nodes", "join, without CometBFT", "the figures mean nothing"} {
		require.Contains(t, out, text)
	}
	require.NotContains(t, out, "%!", "a format does not fit its arguments")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "states left behind")

	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var figures map[string]any
	require.NoError(t, json.Unmarshal(b, &figures))
	for _, name := range []string{
		"keys", "r", "window", "tps_local", "tps_app", "tps_paged", "raw_bytes_tx", "bag_bytes_tx_cold", "bag_bytes_tx", "witness_reduction", "stale_rate",
		"witness_ops_s", "witness_cpu_us", "memory_ratio", "join_s", "join_bytes", "header_bytes", "put_s",
	} {
		require.IsType(t, 1.0, figures[name], name)
		require.Positive(t, figures[name], name)
	}
	require.Equal(t, []any{1.0, 3.0}, figures["shards"])
	require.Equal(t, 0.0, figures["miss_rate"])
	var result dsmbench.Result
	require.NoError(t, json.Unmarshal(b, &result))
	require.Less(t, result.BagBytesTx, result.BagBytesTxCold)
	require.Less(t, result.BagBytesTxCold, result.RawBytesTx)
	for _, row := range result.ShardRows {
		require.Positive(t, row.CPUMicros, row.Shards)
		require.Positive(t, row.PutS, row.Shards)
	}
	require.Positive(t, result.Join.Blocks)
}

func TestDSMPhases(t *testing.T) {
	long(t)
	file := filepath.Join(t.TempDir(), "dsm.json")
	out, err := run(t.Context(), "dsm", "--quick", "--phases", "join", "--json", file)
	require.NoError(t, err)
	require.NotContains(t, out, "bags of age")
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var result dsmbench.Result
	require.NoError(t, json.Unmarshal(b, &result))
	require.Positive(t, result.JoinS)
	require.Zero(t, result.WitnessOpsS)
	require.Zero(t, result.TPSLocal)
}

func TestDSMInterrupted(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := run(ctx, "dsm", "--dir", dir)
	require.ErrorIs(t, err, harness.ErrInterrupted)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestDSMRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"keys":   {[]string{"--keys", "10"}, []string{"--keys is 10", "2000"}},
		"retain": {[]string{"--retain", "17"}, []string{"--retain is 17", "16"}},
		"window": {[]string{"--window", "0"}, []string{"--window is 0"}},
		"shards": {[]string{"--shards", "0"}, []string{"--shards has 0"}},
		"depths": {[]string{"--depths", "20"}, []string{"--depths has 20"}},
		"phase":  {[]string{"--phases", "all"}, []string{`"all"`, "sizes"}},
		"twice":  {[]string{"--phases", "join,join"}, []string{"join twice"}},
		"none":   {[]string{"--phases", ""}, []string{"--phases names none"}},
		"paged":  {[]string{"--paged-mb", "1"}, []string{"--paged-mb is 1"}},
		"blocks": {[]string{"--blocks", "0"}, []string{"--blocks is 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := run(t.Context(), append([]string{"dsm"}, c.args...)...)
			require.Error(t, err)
			for _, text := range c.want {
				require.ErrorContains(t, err, text)
			}
		})
	}
}
