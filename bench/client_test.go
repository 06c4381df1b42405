package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/bench/clientbench"
)

// That all answers are right is part of the run.
func TestClient(t *testing.T) {
	long(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "client.json")
	out, err := run(t.Context(), "client", "--rounds", "1", "--seconds", "1", "--keys", "600", "--range-keys", "20", "--workers", "2", "--validators", "1",
		"--timeout-commit", "50ms", "--json", file, "--dir", dir)
	require.NoError(t, err)
	for _, text := range []string{"transaction", "get, proved", "A different promise", "1 validator of Starling survive 0", "3 members of etcd survive 1"} {
		require.Contains(t, out, text)
	}
	require.NotContains(t, out, "%!", "a format does not fit its arguments")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "homes left behind")

	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var result clientbench.Result
	require.NoError(t, json.Unmarshal(b, &result))
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

// That no watcher misses an event is part of the run.
func TestWatch(t *testing.T) {
	long(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "watch.json")
	out, err := run(t.Context(), "watch", "--rounds", "1", "--seconds", "2", "--watchers", "40", "--all", "2", "--changes", "200", "--heights", "20",
		"--timeout-commit", "100ms", "--json", file, "--dir", dir)
	require.NoError(t, err)
	for _, text := range []string{"none was missed", "40 watchers of one key each and 2 of everything", "p99 of the time between blocks", "events a second"} {
		require.Contains(t, out, text)
	}
	require.NotContains(t, out, "%!", "a format does not fit its arguments")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "homes left behind")

	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var result clientbench.WatchResult
	require.NoError(t, json.Unmarshal(b, &result))
	require.GreaterOrEqual(t, result.CatchUp.Heights, 20)
	require.Positive(t, result.CatchUp.PerSecond[0])
	require.Positive(t, result.Events)
	require.Zero(t, result.Events%3, "each change is one key's, and two watch everything")
	require.Len(t, result.Goals, 2)
}

func TestClientRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"rounds":     {[]string{"client", "--rounds", "0"}, []string{"--rounds is 0"}},
		"keys":       {[]string{"client", "--keys", "0"}, []string{"--keys is 0"}},
		"value":      {[]string{"client", "--value-bytes", "1"}, []string{"--value-bytes is 1", "16"}},
		"range":      {[]string{"client", "--range-keys", "2000"}, []string{"--range-keys is 2000"}},
		"workers":    {[]string{"client", "--workers", "0"}, []string{"--workers is 0"}},
		"validators": {[]string{"client", "--validators", "0"}, []string{"--validators is 0"}},
		"watchers":   {[]string{"watch", "--watchers", "0"}, []string{"--watchers is 0"}},
		"changes":    {[]string{"watch", "--changes", "5"}, []string{"--changes is 5", "--tx-changes"}},
		"heights":    {[]string{"watch", "--heights", "100000"}, []string{"--heights is 100000", "100,000 blocks"}},
		"no program": {[]string{"client", "--starlingd", "no/such/program", "--etcdstore", "none"}, []string{"no/such/program"}},
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
