package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/bench/comparebench"
	"github.com/starling-kv/starling/bench/framebench"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/tablebench"
)

// That Pebble reads what each writer wrote is part of the run.
func TestTables(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "tables.json")
	out, err := run(t.Context(), "tables", "--mb", "1", "--rounds", "2", "--seed", "3", "--json", file, "--dir", dir)
	require.NoError(t, err)
	for _, text := range []string{"rowtable", "sstable, row", "sstable, columnar", "chunks of 700 KB", "chunks of 5 KB", "1 MiB", "2 rounds"} {
		require.Contains(t, out, text)
	}
	require.NotContains(t, out, "%!", "a format does not fit its arguments")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "tables left behind")

	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var result tablebench.Result
	require.NoError(t, json.Unmarshal(b, &result))
	require.Len(t, result.Workloads, 3)
	for _, w := range result.Workloads {
		require.Len(t, w.Rows, 6, w.Name)
		for _, row := range w.Rows {
			require.Positive(t, row.Allocs, "%s, %s", w.Name, row.Writer)
			require.Greater(t, row.Written, 1.0, "%s, %s", w.Name, row.Writer)
			require.Less(t, row.Written, 2.0, "%s, %s", w.Name, row.Writer)
		}
		require.Equal(t, harness.Interval{Median: 1, Low: 1, High: 1, Confidence: 0.5}, w.Rows[0].Times)
	}
}

// That all answers are right, and cancelled calls end, is part of the run.
func TestFrames(t *testing.T) {
	file := filepath.Join(t.TempDir(), "frames.json")
	out, err := run(t.Context(), "frames", "--mb", "2", "--small", "5", "--flight", "3", "--rounds", "1", "--json", file)
	require.NoError(t, err)
	for _, text := range []string{"tcp", "yamux", "go-yamux", "quic", "1 round ", "3 large answers are under way"} {
		require.Contains(t, out, text)
	}
	require.NotContains(t, out, "%!", "a format does not fit its arguments")
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var result framebench.Result
	require.NoError(t, json.Unmarshal(b, &result))
	require.Len(t, result.Rows, 4)
	for _, row := range result.Rows {
		require.Positive(t, row.SPerGiB.Median, row.Name)
		require.Positive(t, row.MBPerS.Median, row.Name)
		require.Positive(t, row.BesideP99US.Median, row.Name)
		require.GreaterOrEqual(t, row.AloneP99US.Median, row.AloneP50US.Median, row.Name)
		require.Positive(t, row.CancelMS.Median, row.Name)
		require.Less(t, row.CancelBytes.Median, float64(64<<20), row.Name)
	}
}

func TestLibrariesInterrupted(t *testing.T) {
	for _, command := range []string{"tables", "frames"} {
		dir := t.TempDir()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		args := []string{command, "--rounds", "1000", "--json", filepath.Join(dir, "x.json")}
		if command == "tables" {
			args = append(args, "--dir", dir)
		}
		_, err := run(ctx, args...)
		cancel()
		require.ErrorIs(t, err, harness.ErrInterrupted, command)
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, left, command)
	}
}

func TestLibrariesRefusals(t *testing.T) {
	for name, c := range map[string]struct{ args, want []string }{
		"mb":      {[]string{"tables", "--mb", "0"}, []string{"--mb is 0", "4096"}},
		"rounds":  {[]string{"tables", "--rounds", "-1"}, []string{"--rounds is -1"}},
		"dir":     {[]string{"tables", "--dir", "no/such/folder"}, []string{"--dir"}},
		"flight":  {[]string{"frames", "--flight", "16"}, []string{"--flight is 16", "15"}},
		"small":   {[]string{"frames", "--small", "0"}, []string{"--small is 0"}},
		"nothing": {[]string{"frames", "a"}, []string{"unknown command"}},
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

func TestLibrariesHelpEndsInAnExample(t *testing.T) {
	for _, command := range []string{"tables", "frames"} {
		out, err := run(t.Context(), command, "--help")
		require.NoError(t, err)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		require.Equal(t, "  go run . "+command+" --json "+command+".json", lines[len(lines)-1])
	}
}

// A program that works three times as long uses more CPU time, whichever comes first in a pair.
func TestCompare(t *testing.T) {
	dir := t.TempDir()
	spin := func(name string, times int) string {
		path := filepath.Join(dir, name)
		script := fmt.Sprintf("#!/bin/sh\n[ \"$1\" = work ] || exit 9\ni=0\nwhile [ $i -lt %d ]; do i=$((i+1)); done\n", times*50_000)
		require.NoError(t, os.WriteFile(path, []byte(script), 0o755))
		return path
	}
	once, thrice := spin("once", 1), spin("thrice", 3)
	file := filepath.Join(dir, "compare.json")
	out, err := run(t.Context(), "compare", "--pairs", "6", "--json", file, once, thrice, "--", "work")
	require.NoError(t, err)
	require.Contains(t, out, "after/before")
	require.Contains(t, out, "6 pairs")
	require.Contains(t, out, "at 96.9 %")
	require.NotContains(t, out, "%!", "a format does not fit its arguments")
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var result comparebench.Result
	require.NoError(t, json.Unmarshal(b, &result))
	require.Len(t, result.Before.Runs, 6)
	require.Len(t, result.After.Runs, 6)
	require.Greater(t, result.CPU.Median, 1.5)
	require.Less(t, result.CPU.Median, 6.0)
	require.Greater(t, result.CPU.Low, 1.0)

	_, err = run(t.Context(), "compare", once, thrice, "--", "rest")
	require.ErrorContains(t, err, "exit status 9")
	_, err = run(t.Context(), "compare", "--pairs", "0", once, thrice)
	require.ErrorContains(t, err, "--pairs is 0")
	_, err = run(t.Context(), "compare", once)
	require.ErrorContains(t, err, "at least 2 arg")
}
