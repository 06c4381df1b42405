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

	"github.com/starling-kv/starling/cosmos/iavlsync/iavlsynctest"
)

// large is a stopped node with several chunks, and what a join of it has to make.
type large struct {
	*stopped
	address string
	content [32]byte // of the joined database
	bytes   int64    // of a home that has all chunks and the database
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
	l.content = l.check(t, home, backend)
	l.bytes = size(dbDir(home, applicationDB))
	return l
}

func (l *large) join(home string, backend dbm.BackendType) []string {
	return []string{"join", "--database-only", "--home", home, "--chain-id", chainID, "--peers", l.address, "--db-backend", string(backend),
		"--trust-height", fmt.Sprint(trusted), "--trust-hash", fmt.Sprintf("%X", l.blocks[trusted])}
}

// check opens a joined home with the stock multi-store, which executes a block on it. It returns
// the hash of what was there before.
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

// requireInvisible fails if a home whose join is not finished has a state.
func requireInvisible(t *testing.T, home string) {
	t.Helper()
	require.NoDirExists(t, dbDir(home, applicationDB))
}

// TestKilled: a join that is killed (kill -9) wherever it may be leaves no state, and resumes with
// the same command. What comes of it is what an undisturbed join makes, byte for byte.
func TestKilled(t *testing.T) {
	for _, backend := range []dbm.BackendType{dbm.GoLevelDBBackend, dbm.PebbleDBBackend} {
		t.Run(string(backend), func(t *testing.T) {
			rnd := iavlsynctest.Rand(t)
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
			require.Positive(t, atFile, "no join was killed at a file")
		})
	}
}

// attempts of a kill: on a busy machine a join may end before the goroutine that kills it looks.
const attempts = 5

// at kills a join at a step, and resumes it. It reports whether there was a kill, which there may
// not be at a file that is seen too late.
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
	t.Logf("the machine is busy: %d joins have ended before the file was seen", attempts)
	return false
}

// again kills the join of one home whenever it has some more bytes, up to the last ones. If one
// kill is missed, it begins with another home, at other bytes.
func (l *large) again(t *testing.T, rnd *rand.Rand, backend dbm.BackendType) {
	for range attempts {
		if l.killedAgain(t, rnd, backend) {
			return
		}
	}
	t.Fatalf("in each of %d homes a join has ended before it was killed", attempts)
}

// killedAgain reports whether each kill hit a join.
func (l *large) killedAgain(t *testing.T, rnd *rand.Rand, backend dbm.BackendType) bool {
	t.Helper()
	const kills = 8
	home := filepath.Join(t.TempDir(), "joiner")
	for i := range kills {
		most := l.bytes * int64(i) / kills
		most += rnd.Int64N(l.bytes/kills) + 1
		out, killed, err := child(t, home, fmt.Sprintf("bytes %d", most), l.join(home, backend)...)
		if err == nil {
			t.Logf("the machine is busy: the join has ended before it was seen at %d of %d bytes", most, l.bytes)
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
	// Those before may have been killed before they could say so.
	require.Contains(t, out, "resuming the join at height 11")
	require.Contains(t, out, ", 0 of them fetched now")
	require.Equal(t, l.content, l.check(t, home, backend))
	return true
}
