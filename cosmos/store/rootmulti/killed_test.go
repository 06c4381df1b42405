package rootmulti_test

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	dbm "github.com/cosmos/cosmos-db"
	"github.com/stretchr/testify/require"

	"cosmossdk.io/log/v2"
	"github.com/cosmos/cosmos-sdk/store/v2/types"

	"github.com/starling-kv/starling/cosmos/store"
	"github.com/starling-kv/starling/cosmos/store/rootmulti"
)

// killedDir is the environment variable with the folder in which TestKilledChild commits until it
// is killed.
const killedDir = "STARLING_TEST_KILLED_DIR"

var killedKeys = []types.StoreKey{types.NewKVStoreKey("iavl"), types.NewKVStoreKey("starling")}

func openKilled(t *testing.T, dir string) (ms *rootmulti.Store, end func()) {
	t.Helper()
	db, err := dbm.NewGoLevelDB("application", dir, nil)
	require.NoError(t, err)
	ms = rootmulti.NewStore(db, log.NewNopLogger(), rootmulti.Options{Dir: filepath.Join(dir, "starling"), PinEvery: 10})
	ms.MountStoreWithDB(killedKeys[0], types.StoreTypeIAVL, nil)
	ms.MountStoreWithDB(killedKeys[1], store.Type, nil)
	require.NoError(t, ms.LoadLatestVersion())
	return ms, func() {
		require.NoError(t, ms.Close())
		require.NoError(t, db.Close())
	}
}

// commitKilled commits the next version. Its changes depend only on its height.
func commitKilled(ms *rootmulti.Store) types.CommitID {
	rnd := rand.New(rand.NewPCG(uint64(ms.LastCommitID().Version), 7))
	for range 500 {
		key := binary.BigEndian.AppendUint64(nil, rnd.Uint64N(5000))
		for _, k := range killedKeys {
			if rnd.IntN(4) == 0 {
				ms.GetKVStore(k).Delete(key)
			} else {
				ms.GetKVStore(k).Set(key, fmt.Append(nil, rnd.Uint64()))
			}
		}
	}
	return ms.Commit()
}

// TestKilledChild is the process that TestKilled kills.
func TestKilledChild(t *testing.T) {
	dir := os.Getenv(killedDir)
	if dir == "" {
		t.Skip("TestKilled runs it")
	}
	ms, _ := openKilled(t, dir)
	for {
		id := commitKilled(ms)
		fmt.Printf("committed %d %X\n", id.Version, id.Hash)
	}
}

// TestKilled kills a process while it commits. After a restart, stores of both kinds must be at the
// same version, which is not before the last one that Commit returned, and the app hashes must be
// the same as without the kill.
func TestKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("processes")
	}
	if os.Getenv(killedDir) != "" {
		t.Skip("this is the child")
	}
	self, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	reference, end := openKilled(t, t.TempDir())
	defer end()
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 5 {
		child := exec.Command(self, "-test.run=^TestKilledChild$", "-test.timeout=10m")
		child.Env = append(os.Environ(), killedDir+"="+dir)
		out, err := child.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, child.Start())
		last, commits := int64(0), 5+rnd.IntN(20)
		for lines := bufio.NewScanner(out); commits > 0 && lines.Scan(); {
			var hash string
			if n, _ := fmt.Sscanf(lines.Text(), "committed %d %s", &last, &hash); n == 2 {
				commits--
			}
		}
		require.Zero(t, commits, "the child exited before it was killed")
		require.NoError(t, child.Process.Kill()) // most likely during the next commit
		require.Error(t, child.Wait())

		ms, end := openKilled(t, dir)
		id := ms.LastCommitID()
		require.GreaterOrEqual(t, id.Version, last)
		for _, k := range killedKeys {
			require.Equal(t, id.Version, ms.GetStore(k).(types.CommitStore).LastCommitID().Version, k.Name())
		}
		for reference.LastCommitID().Version < id.Version {
			commitKilled(reference)
		}
		require.Equal(t, reference.LastCommitID(), id)
		require.Equal(t, commitKilled(reference), commitKilled(ms))
		end()
	}
}
