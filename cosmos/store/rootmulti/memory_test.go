package rootmulti

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	dbm "github.com/cosmos/cosmos-db"
	"github.com/stretchr/testify/require"

	"cosmossdk.io/log/v2"
	"github.com/cosmos/cosmos-sdk/store/v2/types"

	"github.com/starling-kv/starling/cosmos/store"
)

// TestMemoryIsSaid checks that memory use is logged once at half and once at three quarters of the
// memory, again after a thousand heights, and at the start of a node that already uses so much.
func TestMemoryIsSaid(t *testing.T) {
	var out bytes.Buffer
	db, fs, key := dbm.NewMemDB(), vfs.NewMem(), types.NewKVStoreKey("s")
	open := func() *Store {
		s := NewStore(db, log.NewLogger(&out, log.ColorOption(false)), Options{Dir: "starling", FS: fs, MemoryBytes: 1 << 40})
		s.MountStoreWithDB(key, store.Type, nil)
		require.NoError(t, s.LoadLatestVersion())
		return s
	}
	s := open()
	s.GetKVStore(key).Set([]byte("k"), bytes.Repeat([]byte{1}, 1000))
	said := func(height int64) string {
		out.Reset()
		for s.LastCommitID().Version < height {
			s.Commit()
		}
		return out.String()
	}
	require.NotContains(t, said(32), "Starling stores")
	takes := s.GetKVStore(key).(*store.Store).MemoryBytes()
	require.Greater(t, takes, uint64(1000))

	s.memory.limit = 2*takes - 8
	warning := said(64)
	require.Equal(t, 1, strings.Count(warning, "Starling stores use more than half"), warning)
	require.Contains(t, warning, "WRN")
	require.Contains(t, warning, "height=48")
	require.NotContains(t, said(1040), "Starling stores")
	require.Contains(t, said(1048), "height=1048")

	s.memory.limit = takes
	fail := said(1088)
	require.Equal(t, 1, strings.Count(fail, "more than three quarters"), fail)
	require.Contains(t, fail, "ERR")

	// The use falls below the level, and rises above it again.
	s.memory.limit = 8 * takes
	require.NotContains(t, said(1104), "Starling stores")
	s.memory.limit = takes
	require.Contains(t, said(1120), "more than three quarters")

	require.NoError(t, s.Close())
	out.Reset()
	s = open()
	defer func() { require.NoError(t, s.Close()) }()
	require.NotContains(t, out.String(), "Starling stores")
	s.memory.limit = takes
	require.NoError(t, s.LoadLatestVersion())
	require.Contains(t, out.String(), "more than three quarters")
}

func TestAvailableMemory(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(math.MaxInt64))
	root := t.TempDir()
	write := func(name, content string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o750))
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(content), 0o600))
	}
	require.Zero(t, availableMemory(root))
	write("proc/meminfo", "MemTotal:       16000000 kB\nMemFree:        1 kB\n")
	require.EqualValues(t, 16000000<<10, availableMemory(root))
	write("proc/self/cgroup", "0::/\n")
	write("sys/fs/cgroup/memory.max", "max\n")
	require.EqualValues(t, 16000000<<10, availableMemory(root))
	write("sys/fs/cgroup/memory.max", "9000000000\n") // the container's own limit
	require.EqualValues(t, 9000000000, availableMemory(root))
	write("proc/self/cgroup", "4:cpu,memory:/a/b\n1:cpu:/x\n0::/\n")
	write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
	write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "8000000000\n")
	write("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "8500000000\n")
	require.EqualValues(t, 8000000000, availableMemory(root))
	debug.SetMemoryLimit(7000000000)
	require.EqualValues(t, 7000000000, availableMemory(root))
	require.NotZero(t, availableMemory("/"))
}
