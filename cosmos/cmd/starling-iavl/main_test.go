package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	dbm "github.com/cosmos/cosmos-db"
	pruning "github.com/cosmos/cosmos-sdk/store/v2/pruning/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
)

// guide returns the commands in docs/how-to/cosmos-join.md, by the first word after the program's
// name.
func guide(t *testing.T) map[string]string {
	text, err := os.ReadFile("../../../docs/how-to/cosmos-join.md")
	require.NoError(t, err)
	joined := strings.ReplaceAll(string(text), "\\\n", " ")
	commands := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\$ starling-iavl (\w+) (.*)$`).FindAllStringSubmatch(joined, -1) {
		commands[m[1]] = strings.Join(strings.Fields(m[2]), " ")
	}
	require.Len(t, commands, 2)
	return commands
}

// serving runs a server until the test ends, and returns its address.
func serving(t *testing.T, args ...string) string {
	ctx, cancel := context.WithCancel(context.Background())
	out, in := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := run(ctx, append([]string{"serve", "--laddr", "127.0.0.1:0"}, args...), in, io.Discard)
		_ = in.CloseWithError(fmt.Errorf("the server ended: %w", err))
		done <- err
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	m := regexp.MustCompile(`^serving chain demo-1, heights \[(.*)\], at (\S+)\n$`).FindStringSubmatch(line)
	require.NotNil(t, m, "%s", line)
	return m[2]
}

// TestGuide runs the commands of docs/how-to/cosmos-join.md. The stock rootmulti continues from the
// joined state, with the chain's app hashes.
func TestGuide(t *testing.T) {
	for _, backend := range []dbm.BackendType{dbm.GoLevelDBBackend, dbm.PebbleDBBackend} {
		t.Run(string(backend), func(t *testing.T) {
			s := newStopped(t, backend)
			home := filepath.Join(t.TempDir(), "joiner")
			commands := guide(t)
			real := strings.NewReplacer("~/stopped", s.home, "~/.simapp", home, "--trust-height 1200", fmt.Sprintf("--trust-height %d", trusted),
				"5D3C…", fmt.Sprintf("%X", s.blocks[trusted]))
			address := serving(t, strings.Fields(real.Replace(commands["serve"]))...)
			args := strings.Fields(strings.ReplaceAll(real.Replace(commands["join"]), "10.0.0.1:26666", address))
			var out, progress bytes.Buffer
			require.NoError(t, run(context.Background(), append([]string{"join", "--database-only", "--db-backend", string(backend)}, args...), &out, &progress), "%s", &progress)
			// The app hash of the newest state is in a header that the stopped node does not have.
			require.Contains(t, out.String(), fmt.Sprintf("joined at height %d, app hash %x:", latest-1, s.hashes[latest-1]))

			got, err := backendOf(dbDir(home, applicationDB))
			require.NoError(t, err)
			require.Equal(t, backend, got)
			store, keys, db := application(t, home, backend)
			require.Equal(t, s.hashes[latest-1], store.LastCommitID().Hash)
			require.Equal(t, s.hashes[latest], block(store, keys, latest))
			require.NoError(t, db.Close())

			err = run(context.Background(), append([]string{"join"}, args...), io.Discard, io.Discard)
			require.ErrorContains(t, err, "already exists")
		})
	}
}

// TestPrunesAfterJoin: a joined node that takes snapshots prunes. The home's app.toml has the
// interval.
func TestPrunesAfterJoin(t *testing.T) {
	const interval, last = 4, 20
	s := newStopped(t, dbm.GoLevelDBBackend)
	home := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(home, "config"), 0o700))
	settings := fmt.Sprintf("pruning = \"custom\"\n\n[state-sync]\nsnapshot-interval = %d\nsnapshot-keep-recent = 2\n", interval)
	require.NoError(t, os.WriteFile(filepath.Join(home, "config", "app.toml"), []byte(settings), 0o600))
	require.NoError(t, run(context.Background(), []string{"join", "--database-only", "--home", home, "--chain-id", chainID, "--peers", serving(t, "--home", s.home),
		"--trust-height", fmt.Sprint(trusted), "--trust-hash", fmt.Sprintf("%x", s.blocks[trusted])}, io.Discard, io.Discard))

	store, keys, db := application(t, home, dbm.GoLevelDBBackend)
	store.SetPruning(pruning.NewCustomPruningOptions(2, 1))
	store.SetIAVLSyncPruning(true)
	store.SetSnapshotInterval(interval)
	require.NoError(t, store.LoadLatestVersion())
	for h := int64(latest); h <= last; h++ {
		block(store, keys, h)
		if h%interval == 0 { // as the snapshot manager does, after a snapshot
			store.AnnounceSnapshotHeight(h)
			store.PruneSnapshotHeight(h)
		}
	}
	_, err := store.CacheMultiStoreWithVersion(latest)
	require.Error(t, err, "pruned")
	require.NoError(t, db.Close())
}

// TestKilledBeforeTheName: a complete database that was not yet renamed is renamed, if it was
// proved with the header that is trusted now.
func TestKilledBeforeTheName(t *testing.T) {
	s := newStopped(t, dbm.GoLevelDBBackend)
	require.NoError(t, os.Rename(dbDir(s.home, applicationDB), dbDir(s.home, joiningDB)))
	var out bytes.Buffer
	again := func(more ...string) error {
		return run(context.Background(), append([]string{"join", "--database-only", "--home", s.home, "--chain-id", chainID, "--peers", "127.0.0.1:1",
			"--trust-height", "5", "--trust-hash", strings.Repeat("AB", 32)}, more...), &out, io.Discard)
	}
	require.ErrorContains(t, again(), "header of the complete join is unknown")
	was := trust{ChainID: chainID, Height: 5, Hash: strings.Repeat("ab", 32)}
	require.NoError(t, was.write(s.home))
	for _, other := range [][]string{{"--chain-id", "demo-2"}, {"--trust-height", "6"}, {"--trust-hash", strings.Repeat("cd", 32)}, {"--height", "11"}} {
		require.ErrorContains(t, again(other...), "To start over, remove "+dbDir(s.home, joiningDB), "%s", other)
		require.NoDirExists(t, dbDir(s.home, applicationDB))
	}
	require.NoError(t, again("--height", "12"))
	require.Contains(t, out.String(), "already joined at height 12")
	require.DirExists(t, dbDir(s.home, applicationDB))
	require.NoFileExists(t, was.path(s.home))
}

// TestKilledAfterTheName: the same command finds that nothing is left to do, and tidies up.
func TestKilledAfterTheName(t *testing.T) {
	home := newStopped(t, dbm.GoLevelDBBackend).home
	require.NoError(t, os.MkdirAll(filepath.Join(joiningDir(home), chunksFolder), 0o700))
	was := trust{ChainID: chainID, Height: 5, Hash: strings.Repeat("ab", 32), State: latest}
	var out bytes.Buffer
	again := func(hash string) error {
		return run(context.Background(), []string{"join", "--database-only", "--home", home, "--chain-id", chainID, "--peers", "127.0.0.1:1",
			"--trust-height", "5", "--trust-hash", hash}, &out, io.Discard)
	}
	// A state that the node has obtained otherwise, after a join was abandoned, is not mistaken for
	// the join's state, and the chunks are not removed.
	for _, height := range []int64{0, latest - 1, latest + 1} {
		given := was
		given.State = height
		require.NoError(t, given.write(home))
		require.ErrorContains(t, again(was.Hash), "already exists", "height %d", height)
		require.DirExists(t, filepath.Join(joiningDir(home), chunksFolder))
	}
	require.NoError(t, was.write(home))
	require.NoError(t, os.Mkdir(dbDir(home, joiningDB), 0o700))
	require.ErrorContains(t, again(was.Hash), "already exists")
	require.NoError(t, os.Remove(dbDir(home, joiningDB)))
	require.DirExists(t, filepath.Join(joiningDir(home), chunksFolder))

	require.ErrorContains(t, again(strings.Repeat("cd", 32)), "already exists")
	require.NoError(t, again(was.Hash))
	require.Equal(t, fmt.Sprintf("already joined at height %d\n", latest), out.String())
	require.NoDirExists(t, joiningDir(home))
	require.ErrorContains(t, again(was.Hash), "already exists")
}

// TestOtherTrust: servers of another chain have nothing that the trusted header proves.
func TestOtherTrust(t *testing.T) {
	s := newStopped(t, dbm.GoLevelDBBackend)
	address := serving(t, "--home", s.home)
	home := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var log watched
	log.found, log.words = cancel, "cannot be proved"
	err := run(ctx, []string{"join", "--database-only", "--home", home, "--chain-id", chainID, "--peers", address,
		"--trust-height", "5", "--trust-hash", strings.Repeat("ab", 32)}, io.Discard, &log)
	require.Error(t, err)
	require.NoDirExists(t, dbDir(home, applicationDB))
}

// watched calls found once its words have been written.
type watched struct {
	bytes.Buffer
	words string
	found func()
}

func (w *watched) Write(b []byte) (int, error) {
	n, err := w.Buffer.Write(b)
	if strings.Contains(w.String(), w.words) {
		w.found()
	}
	return n, err
}

func TestArguments(t *testing.T) {
	for name, test := range map[string]struct {
		args  []string
		usage bool
		want  string
	}{
		"nothing":        {nil, true, "usage:"},
		"unknown":        {[]string{"sync"}, true, "usage:"},
		"no home":        {[]string{"serve"}, true, "--home is required"},
		"an argument":    {[]string{"serve", "now"}, true, `unexpected argument "now"`},
		"unknown flag":   {[]string{"join", "--fast"}, true, "-fast"},
		"no trust":       {[]string{"join", "--home", "x", "--chain-id", "c", "--peers", "h:1"}, true, "--trust-height is required"},
		"a short hash":   {[]string{"join", "--home", "x", "--chain-id", "c", "--peers", "h:1", "--trust-height", "1", "--trust-hash", "ab"}, false, "64 hexadecimal digits"},
		"another engine": {[]string{"join", "--home", "x", "--chain-id", "c", "--peers", "h:1", "--trust-height", "1", "--trust-hash", strings.Repeat("ab", 32), "--db-backend", "rocksdb"}, false, "neither goleveldb nor pebbledb"},
		"no port":        {[]string{"join", "--home", "x", "--chain-id", "c", "--peers", "h", "--trust-height", "1", "--trust-hash", strings.Repeat("ab", 32)}, false, "--peers"},
		"no database":    {[]string{"serve", "--home", t.TempDir()}, false, "is not the home of a node with a state"},
	} {
		t.Run(name, func(t *testing.T) {
			var stderr bytes.Buffer
			err := run(context.Background(), test.args, io.Discard, &stderr)
			require.Error(t, err)
			if test.usage {
				require.ErrorIs(t, err, errUsage)
				require.Contains(t, stderr.String(), test.want)
			} else {
				require.ErrorContains(t, err, test.want)
			}
		})
	}
	var out bytes.Buffer
	require.NoError(t, run(context.Background(), []string{"help"}, &out, io.Discard))
	require.Equal(t, usage, out.String())
	for _, command := range []string{"serve", "join"} {
		out.Reset()
		require.ErrorIs(t, run(context.Background(), []string{command, "--help"}, &out, io.Discard), flag.ErrHelp)
		require.Contains(t, out.String(), "  --home string\n      home folder of")
	}
	require.Contains(t, out.String(), "  --database-only\n")
}

// TestRoom: too little space is not a full disk, but is treated like one.
func TestRoom(t *testing.T) {
	home := t.TempDir()
	require.NoError(t, os.Mkdir(dataDir(home), 0o700))
	require.NoError(t, room(home, 1))
	err := room(home, math.MaxInt64)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorContains(t, err, "has too little space. Resuming needs ")
}

// TestExplainFull: only a full disk is explained, with as much detail as is known.
func TestExplainFull(t *testing.T) {
	home := t.TempDir()
	other := errors.New("another failure")
	require.Equal(t, other, explainFull(other, home, 10))
	for _, cause := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		full := fmt.Errorf("keep chunk 3: %w", &fs.PathError{Op: "write", Path: "x", Err: cause})
		err := explainFull(full, home, 10)
		require.ErrorIs(t, err, cause)
		require.ErrorContains(t, err, "known after the first chunk")
	}
	chunks := filepath.Join(joiningDir(home), chunksFolder)
	require.NoError(t, os.MkdirAll(chunks, 0o700))
	whole := append([]byte{byte(iavlsync.AnswerWhole)}, make([]byte, 999_999)...)
	halves := append([]byte{byte(iavlsync.AnswerHalves)}, make([]byte, 99)...)
	for name, b := range map[string][]byte{"0-0-500": whole, "0-500-700": halves, "manifest": whole, ".part-1": whole} {
		require.NoError(t, os.WriteFile(filepath.Join(chunks, name), b, 0o600))
	}
	err := explainFull(fmt.Errorf("finish: %w", syscall.ENOSPC), home, 2000)
	require.ErrorContains(t, err, "about 11.3 MB: 3.0 MB of chunks and 8.3 MB of the database")
}
