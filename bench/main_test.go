package main

import (
	"bytes"
	"context"
	"encoding/json"
	"github.com/starling-kv/starling/bench/harness"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/bench/dsmbench"
	"github.com/starling-kv/starling/bench/opsbench"
	"github.com/starling-kv/starling/bench/storagebench"
	"github.com/starling-kv/starling/bench/syncbench"
	"github.com/starling-kv/starling/bench/transportbench"
	"github.com/starling-kv/starling/bench/treebench"
)

// TestMain lets the test binary be the child that the command starts: it runs itself.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && slices.Contains([]string{dsmbench.ChildCommand, treebench.ChildCommand, storagebench.ChildCommand, syncbench.ChildCommand, transportbench.ChildCommand, opsbench.ChildCommand}, os.Args[1]) {
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

// long skips a whole run where quick tests are asked for (go test -short). `make bench` runs all.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("a whole run")
	}
}

func TestTree(t *testing.T) {
	long(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "tree.json")
	out, err := run(t.Context(), "tree", "--keys", "2000", "--batch", "500", "--versions", "20", "--iavl-versions", "10",
		"--seed", "3", "--json", file, "--dir", dir)
	require.NoError(t, err)
	for _, text := range []string{"starling", "memiavl", "memiavl mapped", "iavl", "commit p50, ms", "on one core", "floor", "commit at least 6× memiavl"} {
		require.Contains(t, out, text)
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "databases left behind")

	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var result map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(b, &result))
	require.JSONEq(t, "2000", string(result["keys"]))
	for _, name := range []string{"starling", "iavl", "memiavl", "memiavl_mapped"} {
		var figures map[string]any
		require.NoError(t, json.Unmarshal(result[name], &figures), name)
		for _, key := range []string{
			"load_s", "commit_p50_ms", "commit_one_core_p50_ms", "commit_p99_ms", "get_ns", "proof_us", "export_s", "import_s", "bytes_per_key", "commit_p99_during_export_ms",
		} {
			require.IsType(t, 1.0, figures[key], "%s.%s", name, key)
			if key == "load_s" && name == "memiavl_mapped" {
				require.Zero(t, figures[key], "memiavl has loaded its snapshot")
			} else if key != "bytes_per_key" { // too few keys to see them
				require.Positive(t, figures[key], "%s.%s", name, key)
			}
		}
		require.NotEmpty(t, figures["final_root"])
	}
	var floor map[string]any
	require.NoError(t, json.Unmarshal(result["floor"], &floor))
	require.Positive(t, floor["commit_ms"])
}

func TestTreeAlone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tree.json")
	out, err := run(t.Context(), "tree", "--keys", "2000", "--versions", "5", "--against", "", "--json", file)
	require.NoError(t, err)
	require.NotContains(t, out, "memiavl")
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var result map[string]any
	require.NoError(t, json.Unmarshal(b, &result))
	require.Contains(t, result, "starling")
	require.NotContains(t, result, "iavl")
	require.NotContains(t, result, "memiavl")
}

func TestTreeInterrupted(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "tree.json")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := run(ctx, "tree", "--keys", "3000000", "--dir", dir, "--json", file)
	require.ErrorIs(t, err, harness.ErrInterrupted)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestTreeRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"keys":    {[]string{"--keys", "10"}, []string{"--keys is 10", "2000"}},
		"batch":   {[]string{"--batch", "0"}, []string{"--batch is 0"}},
		"peer":    {[]string{"--against", "merk"}, []string{`"merk"`, "memiavl", "iavl"}},
		"twice":   {[]string{"--against", "iavl,iavl"}, []string{"iavl twice"}},
		"rate":    {[]string{"--export-rate", "NaN"}, []string{"--export-rate is NaN"}},
		"json":    {[]string{"--json", "no/such/folder/x.json"}, []string{"--json", "folder"}},
		"dir":     {[]string{"--dir", "no/such/folder"}, []string{"--dir"}},
		"nothing": {[]string{"a"}, []string{"unknown command"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := run(t.Context(), append([]string{"tree"}, c.args...)...)
			require.Error(t, err)
			for _, text := range c.want {
				require.ErrorContains(t, err, text)
			}
		})
	}
}

func TestHelpEndsInAnExample(t *testing.T) {
	out, err := run(t.Context(), "tree", "--help")
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Equal(t, "  go run . tree --keys 100000 --versions 200 --iavl-versions 20", lines[len(lines)-1])
	require.NotContains(t, out, treebench.ChildCommand)
}
