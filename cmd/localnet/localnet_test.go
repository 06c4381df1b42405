package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/e2e/manifest"
	"github.com/starling-kv/starling/e2e/testnet"
)

// Even with few keys there are enough chunks to request one from every Byzantine peer.
func TestThereAreEnoughChunks(t *testing.T) {
	for _, n := range []int{minKeys, 3000, 20_000} {
		data := testnet.Dataset{Seed: 1, Keys: n, ValueBytes: valueBytes}
		version, err := avlstar.Empty(chunkBytes(n))
		require.NoError(t, err)
		var changes []avlstar.Change
		for i := range n {
			key, value := data.At(i)
			changes = append(changes, avlstar.Change{Key: key, Value: value})
		}
		version, err = version.Apply(changes)
		require.NoError(t, err)
		require.GreaterOrEqual(t, version.NumChunks(), uint32(100), "%d keys, chunks of %d bytes", n, chunkBytes(n))
		require.LessOrEqual(t, version.NumChunks(), uint32(900), "%d keys: in-band state sync applies chunks one by one", n)
	}
}

func TestSummary(t *testing.T) {
	good := summary{Validators: 4, Liars: 2, Keys: 20_000, Height: 41, Chunks: 404, ChunksRejected: 6, PeersRejected: 2, JoinSeconds: 11.1,
		AppHashEqual: true, JoinerHeight: 41, Way: "transport"}
	require.NoError(t, good.verdict(true))
	for want, change := range map[string]func(*summary){
		"did not join":         func(s *summary) { s.JoinerHeight = 0 },
		"app hash differs":     func(s *summary) { s.AppHashEqual = false },
		"nothing was rejected": func(s *summary) { s.ChunksRejected, s.PeersRejected = 0, 0 },
	} {
		bad := good
		change(&bad)
		require.ErrorContains(t, bad.verdict(true), want)
	}
	early := good
	early.ChunksRejected = 0 // an invalid header, for example
	require.NoError(t, early.verdict(true))
	silent := good
	silent.ChunksRejected, silent.PeersRejected = 0, 0
	require.NoError(t, silent.verdict(false), "a peer that never answers proves nothing")

	path := filepath.Join(t.TempDir(), "out.json")
	require.NoError(t, good.write(path))
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	require.JSONEq(t, `{"validators": 4, "liars": 2, "keys": 20000, "height": 41, "chunks": 404, "chunks_rejected": 6, "peers_rejected": 2,
		"join_seconds": 11.1, "app_hash_equal": true, "joiner_height": 41, "way": "transport"}`, string(content))
	require.True(t, json.Valid(content))
	require.ErrorContains(t, good.write(filepath.Join(t.TempDir(), "no", "such", "folder")), "--json")

	var out bytes.Buffer
	good.table(&out, details{SnapshotHeight: 20, SnapshotBytes: 2_300_000, Compared: []int64{41, 42, 43}, VerifiedKey: "demo/x"})
	for _, want := range []string{
		"20,000", "404 chunks", "6 damaged chunks, and 2 peers for good", "equal at heights 41, 42 and 43", "demo/x",
		"11.1 s from command to following the head", "discovery",
	} {
		require.Contains(t, out.String(), want)
	}
	out.Reset()
	good.table(&out, details{RestoreSeconds: "0.6"})
	require.Contains(t, out.String(), "0.6 s of it for the state")
}

func TestWordsForNumbers(t *testing.T) {
	require.Equal(t, "1 peer", count(1, "peer", "peers"))
	require.Equal(t, "0 peers", count(0, "peer", "peers"))
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 20_000: "20,000", 1_234_567: "1,234,567", -1234: "-1,234", -123: "-123"} {
		require.Equal(t, want, group(n))
	}
}

func TestFlags(t *testing.T) {
	var got options
	cmd := command(func(_ context.Context, o options) error { got = o; return nil })
	cmd.SetArgs([]string{"--validators", "3", "--liars", "1", "--keys", "500", "--exit", "--json", "f", "--seed", "9", "--dir", "d", "--keep",
		"--lie", "junk,swap", "--timeout", "7s", "--in-band"})
	require.NoError(t, cmd.Execute())
	require.Equal(t, options{Validators: 3, Liars: 1, Keys: 500, Exit: true, JSON: "f", Seed: 9, Dir: "d", Keep: true,
		Lie: "junk,swap", Timeout: 7 * time.Second, InBand: true}, got)
	require.Equal(t, "in-band", got.way())
	require.Equal(t, []string{"junk", "swap"}, got.lies())

	got = options{}
	cmd = command(func(_ context.Context, o options) error { got = o; return nil })
	cmd.SetArgs(nil)
	require.NoError(t, cmd.Execute())
	require.Equal(t, 4, got.Validators, "the README's figures")
	require.Equal(t, 2, got.Liars)
	require.Equal(t, 20_000, got.Keys)
	require.Equal(t, "transport", got.way())
}

func TestWhatCanBeProved(t *testing.T) {
	for _, c := range []struct {
		liars               int
		lie                 string
		transport, inBanded bool
	}{
		{0, "mix", false, false},
		{1, "mix", true, true},
		{1, "withhold,mix", false, false},
		{2, "withhold,mix", true, true},
		{2, "last,slow", false, true},
		{1, "gone", false, false},
		{1, "header", true, true},
	} {
		o := options{Liars: c.liars, Lie: c.lie}
		require.Equal(t, c.transport, o.provable(), "%+v", c)
		o.InBand = true
		require.Equal(t, c.inBanded, o.provable(), "%+v", c)
	}
}

// Without a terminal, progress is printed as a moderate number of plain lines.
func TestMeterInALog(t *testing.T) {
	var out bytes.Buffer
	s := &screen{out: &out, start: time.Now()}
	m := s.meter("chunks verified", 400)
	m.next = time.Time{} // the next line is due
	for n := range int64(400) {
		m.set(n, 400, "1 chunk rejected")
	}
	m.end()
	require.Equal(t, 1, strings.Count(out.String(), "\n"))
	require.Contains(t, out.String(), "chunks verified: 0 of 400, 1 chunk rejected")
	require.NotContains(t, out.String(), "\r")
}

func TestFolder(t *testing.T) {
	dir, temporary, err := folder(options{})
	require.NoError(t, err)
	require.True(t, temporary)
	require.NoError(t, os.Remove(dir))
	mine := filepath.Join(t.TempDir(), "a", "b")
	dir, temporary, err = folder(options{Dir: mine})
	require.NoError(t, err)
	require.False(t, temporary)
	require.Equal(t, mine, dir)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "x"), nil, 0o644))
	_, _, err = folder(options{Dir: mine})
	require.ErrorContains(t, err, "is not empty")
}

// The joiner starts later, by itself; all other nodes start with the network.
func TestManifest(t *testing.T) {
	m := options{Validators: 2, Liars: 2, Keys: 100, Lie: "junk,swap", Seed: 7, InBand: true}.manifest()
	require.NoError(t, m.Check())
	require.Equal(t, []string{"joiner", "liar-0", "liar-1", "validator-0", "validator-1"}, m.Names())
	require.Equal(t, []string{"junk", "swap"}, []string{m.Nodes["liar-0"].Lie, m.Nodes["liar-1"].Lie})
	require.Equal(t, manifest.InBand, m.Nodes["joiner"].Join)
	require.Positive(t, m.Nodes["joiner"].StartAt)

	m = options{Validators: 2, Shards: 3, Keys: 100}.manifest()
	require.NoError(t, m.Check())
	require.False(t, m.Nodes["validator-0"].Sharded)
	require.True(t, m.Nodes["validator-1"].Sharded)
	require.True(t, m.Nodes["joiner"].Sharded)
	require.Equal(t, manifest.Storage, m.Nodes["storage-2"].Mode)
}
