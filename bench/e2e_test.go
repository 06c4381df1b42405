package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/bench/e2ebench"
	"github.com/starling-kv/starling/bench/joinbench"
	"github.com/starling-kv/starling/bench/syncbench"
)

func TestE2E(t *testing.T) {
	long(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "e2e.json")
	out, err := run(t.Context(), "e2e", "--validators", "2", "--rounds", "1", "--seconds", "2", "--loads", "own", "--rate", "50", "--in-flight", "100",
		"--timeout-commit", "100ms", "--json", file, "--dir", dir)
	require.NoError(t, err)
	for _, text := range []string{"starling", "kvstore", "tx/s", "latency p99, ms", "at least 0.95"} {
		require.Contains(t, out, text)
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "homes left behind")
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var result map[string]any
	require.NoError(t, json.Unmarshal(b, &result))
	for _, name := range []string{"starling_tps", "kvstore_tps", "ratio"} {
		require.IsType(t, 1.0, result[name], name)
		require.Positive(t, result[name], name)
	}
	require.NotContains(t, result, "distinct")
}

// A new node gets a short chain in each of the three ways.
func TestJoin(t *testing.T) {
	if testing.Short() {
		t.Skip("each node of CometBFT's block sync takes seconds to begin")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "join.json")
	out, err := run(t.Context(), "join", "--blocks", "4", "--block-bytes", "100000", "--value-bytes", "10000", "--rounds", "1", "--json", file, "--dir", dir)
	require.NoError(t, err)
	require.Contains(t, out, "over the transport, TCP")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "homes left behind")
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var result joinbench.Result
	require.NoError(t, json.Unmarshal(b, &result))
	require.Equal(t, 4, result.Blocks)
	require.Nil(t, result.RDMAS)
	for _, seconds := range []float64{result.TCPS, result.BlocksyncS, result.Blocksync500S} {
		require.Positive(t, seconds)
	}
}

func TestJoiners(t *testing.T) {
	long(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "joiners.json")
	out, err := run(t.Context(), "joiners", "--validators", "2", "--joiners", "2", "--keys", "200", "--rate", "20", "--snapshot-interval", "5",
		"--seconds", "1", "--timeout-commit", "200ms", "--json", file, "--dir", dir)
	require.NoError(t, err)
	require.Contains(t, out, "2 of 2 joiners follow the head of 2 validators")
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var result e2ebench.JoinersResult
	require.NoError(t, json.Unmarshal(b, &result))
	require.Equal(t, 2, result.Joined)
	require.Positive(t, result.StateBytes)
}

func TestSiegeOfANetwork(t *testing.T) {
	long(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "siege.json")
	_, err := run(t.Context(), "siege", "--kinds", "transactions", "--keys", "2000", "--json", file, "--dir", dir)
	require.NoError(t, err)
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var result syncbench.SiegeResult
	require.NoError(t, json.Unmarshal(b, &result))
	// 6 of these transactions fit into a block.
	require.GreaterOrEqual(t, result.Kinds["transactions"].TxBlocks, 5)
}

func TestE2ERefusals(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"validators": {[]string{"e2e", "--validators", "0"}, []string{"--validators is 0", "1 to 16"}},
		"in flight":  {[]string{"e2e", "--in-flight", "5000"}, []string{"--in-flight is 5000", "5,000"}},
		"size":       {[]string{"e2e", "--tx-bytes", "10"}, []string{"--tx-bytes is 10"}},
		"indexer":    {[]string{"e2e", "--indexer", "psql"}, []string{`"psql"`, "kv or null"}},
		"load":       {[]string{"e2e", "--loads", "much"}, []string{`"much"`, "own or distinct"}},
		"twice":      {[]string{"e2e", "--loads", "own,own"}, []string{"own twice"}},
		"no load":    {[]string{"e2e", "--loads", ""}, []string{"--loads names none"}},
		"kvstore":    {[]string{"e2e", "--kvstore", "noop"}, []string{`"noop"`, "persistent_kvstore"}},
		"rounds":     {[]string{"e2e", "--rounds", "0"}, []string{"--rounds is 0"}},
		"joiners":    {[]string{"joiners", "--joiners", "0"}, []string{"--joiners is 0"}},
		"join":       {[]string{"join", "--blocks", "1"}, []string{"--blocks is 1"}},
		"rate":       {[]string{"joiners", "--rate", "0"}, []string{"--rate is 0"}},
		"no program": {[]string{"joiners", "--starlingd", "no/such/program"}, []string{"no/such/program"}},
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
