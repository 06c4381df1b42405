//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	dbm "github.com/cosmos/cosmos-db"
	"github.com/stretchr/testify/require"
)

// before is a home whose join was killed after the application's database was complete and before
// CometBFT's databases were begun.
type before struct {
	*stopped
	engine  dbm.BackendType
	address string
	home    string
}

func newBefore(t *testing.T, engine dbm.BackendType) *before {
	t.Helper()
	s := newChain(t, engine, 0, 2, otherParams())
	b := &before{s, engine, serving(t, "--home", s.home), filepath.Join(t.TempDir(), "before")}
	writeGenesis(t, b.home, chainID)
	writeSettings(t, b.home, "config.toml", fmt.Sprintf("db_backend = %q\n", engine))
	out, killed, err := child(t, b.home, "line getting the headers", b.join(b.home, b.address)...)
	require.True(t, killed, "%v: %s", err, out)
	requireInvisible(t, b.home)
	return b
}

// finish runs the same command again, and fails unless both have the chain's state afterwards.
func (b *before) finish(t *testing.T, home string) {
	t.Helper()
	out, _, err := child(t, home, "", b.join(home, b.address)...)
	require.NoError(t, err, "%s", out)
	require.Contains(t, out, fmt.Sprintf("already joined at height %d", latest))
	b.checkComet(t, home, latest)
	for _, left := range []string{joiningDir(home), dbDir(home, joiningDB), trust{}.path(home)} {
		require.NoFileExists(t, left)
		require.NoDirExists(t, left)
	}
	store, _, db := application(t, home, b.engine)
	require.Equal(t, b.hashes[latest], store.LastCommitID().Hash)
	require.NoError(t, db.Close())
}

// TestKilledInComet: a join that is killed (kill -9) at any step of writing CometBFT's databases
// leaves no database that a node would start with, and the same command resumes. The same holds if
// a node has left databases without a state.
func TestKilledInComet(t *testing.T) {
	for _, engine := range []dbm.BackendType{dbm.GoLevelDBBackend, dbm.PebbleDBBackend} {
		t.Run(string(engine), func(t *testing.T) {
			b := newBefore(t, engine)
			for _, name := range []string{"blockstore", "state"} {
				for _, step := range []string{"begun", "filled", "replaced", "named"} {
					for _, empty := range []bool{false, true} {
						if empty && step != "replaced" {
							continue // only this step depends on empty
						}
						t.Run(fmt.Sprintf("%s %s, empty ones before: %t", name, step, empty), func(t *testing.T) {
							home := filepath.Join(t.TempDir(), "joiner")
							require.NoError(t, os.CopyFS(home, os.DirFS(b.home)))
							if empty {
								for _, name := range []string{"blockstore", "state"} {
									db, err := dbm.NewDB(name, engine, dataDir(home))
									require.NoError(t, err)
									require.NoError(t, db.Close())
								}
							}
							out, killed, err := child(t, home, "step "+name+" "+step, b.join(home, b.address)...)
							require.True(t, killed, "%v: %s", err, out)
							requireInvisible(t, home)
							b.finish(t, home)
						})
					}
				}
			}
			t.Run("complete", func(t *testing.T) {
				home := filepath.Join(t.TempDir(), "joiner")
				require.NoError(t, os.CopyFS(home, os.DirFS(b.home)))
				out, killed, err := child(t, home, "line CometBFT's state is complete", b.join(home, b.address)...)
				require.True(t, killed, "%v: %s", err, out)
				requireInvisible(t, home)
				b.finish(t, home)
			})
		})
	}
}

// TestKilledAgain: a join that is killed while it builds CometBFT's databases for a joined home is
// resumed, too.
func TestKilledAgain(t *testing.T) {
	b := newBefore(t, dbm.GoLevelDBBackend)
	b.finish(t, b.home)
	for _, lost := range []string{"state", "blockstore"} {
		require.NoError(t, os.RemoveAll(dbDir(b.home, lost)))
	}
	for _, name := range []string{"blockstore", "state"} {
		for _, step := range []string{"begun", "filled", "replaced", "named"} {
			t.Run(name+" "+step, func(t *testing.T) {
				home := filepath.Join(t.TempDir(), "joiner")
				require.NoError(t, os.CopyFS(home, os.DirFS(b.home)))
				out, killed, err := child(t, home, "step "+name+" "+step, b.join(home, b.address)...)
				require.True(t, killed, "%v: %s", err, out)
				b.finish(t, home)
				require.Empty(t, start(t, home))
			})
		}
	}
}
