//go:build unix

package main

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	dbm "github.com/cosmos/cosmos-db"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// large is a stopped node with several chunks, and what a join from it must produce.
type large struct {
	*stopped
	address string
	content [32]byte // hash of the joined database
	bytes   int64    // size of a home with all chunks and the database
}

const (
	largeLeaves = 40_000
	largeHeight = latest - 1
)

func newLarge(t *testing.T, backend dbm.BackendType) *large {
	l := &large{stopped: newFilled(t, backend, largeLeaves)}
	l.address = serving(t, "--home", l.home)
	home := filepath.Join(t.TempDir(), "whole")
	out, _, err := child(t, home, "", l.join(home, backend)...)
	require.NoError(t, err, "%s", out)
	l.bytes = size(dbDir(home, applicationDB)) // before anything else writes to it
	l.content = l.check(t, home, backend)
	return l
}

func (l *large) join(home string, backend dbm.BackendType) []string {
	return []string{"join", "--database-only", "--home", home, "--chain-id", chainID, "--peers", l.address, "--db-backend", string(backend),
		"--trust-height", fmt.Sprint(trusted), "--trust-hash", fmt.Sprintf("%X", l.blocks[trusted])}
}

// check opens a joined home with the stock multi-store, which executes a block on it. It returns
// the hash of the database before this block.
func (l *large) check(t *testing.T, home string, backend dbm.BackendType) [32]byte {
	t.Helper()
	for _, left := range []string{joiningDir(home), dbDir(home, joiningDB), trust{}.path(home)} {
		require.NoFileExists(t, left)
		require.NoDirExists(t, left)
	}
	db, err := dbm.NewDB(applicationDB, backend, dataDir(home))
	require.NoError(t, err)
	sum := sha256.New()
	it, err := db.Iterator(nil, nil)
	require.NoError(t, err)
	for ; it.Valid(); it.Next() {
		for _, b := range [][]byte{it.Key(), it.Value()} {
			sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(b))))
			sum.Write(b)
		}
	}
	require.NoError(t, it.Close())
	require.NoError(t, db.Close())
	store, keys, db := application(t, home, backend)
	require.Equal(t, l.hashes[largeHeight], store.LastCommitID().Hash)
	require.Equal(t, l.hashes[latest], block(store, keys, latest))
	require.NoError(t, db.Close())
	return [32]byte(sum.Sum(nil))
}

// requireInvisible fails if a home with an unfinished join has a state.
func requireInvisible(t *testing.T, home string) {
	t.Helper()
	require.NoDirExists(t, dbDir(home, applicationDB))
}

// TestKilled: a join that is killed (kill -9) at any point leaves no state, and the same command
// resumes. The result equals that of an undisturbed join, byte for byte.
func TestKilled(t *testing.T) {
	for _, backend := range []dbm.BackendType{dbm.GoLevelDBBackend, dbm.PebbleDBBackend} {
		t.Run(string(backend), func(t *testing.T) {
			rnd := seeds.Rand(t)
			l := newLarge(t, backend)
			t.Run("again and again", func(t *testing.T) { l.again(t, rnd, backend) })
			steps := []string{
				"line joining at height", "line all chunks are there", "line the database is complete",
				"file application-joining/chunks/manifest", "file application-joining.db/CURRENT", "file application-joining.db/MANIFEST-*",
				"file application-joining.json",
			}
			if backend == dbm.PebbleDBBackend {
				steps = append(steps, "file application-joining.db/starling-ingest/*.sst", "file application-joining.db/OPTIONS-*", "file application-joining.db/*.log")
			} else {
				steps = append(steps, "file application-joining.db/*.ldb", "file application-joining.db/*.log")
			}
			atFile := 0
			for _, step := range steps {
				t.Run(strings.NewReplacer("/", "|", "*", "x").Replace(step), func(t *testing.T) {
					if l.at(t, backend, step) && strings.HasPrefix(step, "file ") {
						atFile++
					}
				})
			}
			require.Positive(t, atFile, "no join was killed when a file appeared")
		})
	}
}

// attempts limits retries of a kill: on a busy machine a join may end before the killing goroutine
// runs.
const attempts = 5

// at kills a join at a step, and resumes it. It reports whether the join was killed; it may not be
// if a file is noticed too late.
func (l *large) at(t *testing.T, backend dbm.BackendType, step string) bool {
	t.Helper()
	for range attempts {
		home := filepath.Join(t.TempDir(), "joiner")
		out, killed, err := child(t, home, step, l.join(home, backend)...)
		if strings.HasPrefix(step, "file ") && err == nil {
			require.Equal(t, l.content, l.check(t, home, backend))
			continue
		}
		require.True(t, killed, "%v: %s", err, out)
		requireInvisible(t, home)
		out, _, err = child(t, home, "", l.join(home, backend)...)
		require.NoError(t, err, "%s", out)
		require.Equal(t, l.content, l.check(t, home, backend))
		return true
	}
	t.Logf("the machine is busy: %d joins ended before the file was noticed", attempts)
	return false
}

// again kills the join of one home after every few bytes, up to the end. If it misses a kill, it
// starts again with another home and other sizes.
func (l *large) again(t *testing.T, rnd *rand.Rand, backend dbm.BackendType) {
	for range attempts {
		if l.killedAgain(t, rnd, backend) {
			return
		}
	}
	t.Fatalf("in each of %d homes a join ended before it was killed", attempts)
}

// killedAgain reports whether each kill hit a running join.
func (l *large) killedAgain(t *testing.T, rnd *rand.Rand, backend dbm.BackendType) bool {
	t.Helper()
	const kills = 8
	home := filepath.Join(t.TempDir(), "joiner")
	for i := range kills {
		most := l.bytes * int64(i) / kills
		most += rnd.Int64N(l.bytes/kills) + 1
		out, killed, err := child(t, home, fmt.Sprintf("bytes %d", most), l.join(home, backend)...)
		if err == nil {
			t.Logf("the machine is busy: the join ended before it was noticed at %d of %d bytes", most, l.bytes)
			require.Equal(t, l.content, l.check(t, home, backend))
			return false
		}
		require.True(t, killed, "at %d of %d bytes: %v: %s", most, l.bytes, err, out)
		requireInvisible(t, home)
		chunks, _ := filepath.Glob(filepath.Join(joiningDir(home), chunksFolder, "*-*"))
		t.Logf("killed at %d of %d bytes, with %d files of chunks", most, l.bytes, len(chunks))
	}
	out, _, err := child(t, home, "", l.join(home, backend)...)
	require.NoError(t, err, "%s", out)
	// Earlier ones may have been killed before they wrote this line.
	require.Contains(t, out, "resuming the join at height 11")
	require.Contains(t, out, ", 0 of them fetched now")
	require.Equal(t, l.content, l.check(t, home, backend))
	return true
}
