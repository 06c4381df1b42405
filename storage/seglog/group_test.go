package seglog

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// groupLog is a log of groups. The key of a record is a name ‖ the length of the records before it
// in its group:u64be.
type groupLog struct {
	*Log
	names []string // by the last open
	refs  []Ref
}

func openGroupLog(fs vfs.FS) (*groupLog, error) {
	l := &groupLog{}
	before := func(key []byte) uint64 { return binary.BigEndian.Uint64(key[len(key)-8:]) }
	o := LogOptions{Options: Options{FS: fs, Dir: "log", Limit: smallLimit}, Before: before}
	var err error
	l.Log, err = OpenLog(o, func(r Ref, key, _ []byte) error {
		l.names, l.refs = append(l.names, string(key[:len(key)-8])), append(l.refs, r)
		return nil
	})
	return l, err
}

// append appends a group of records with those names, and syncs it.
func (l *groupLog) append(value string, names ...string) error {
	var g Group
	for _, name := range names {
		g.Add(binary.BigEndian.AppendUint64([]byte(name), uint64(g.Bytes())), []byte(value))
	}
	_, err := l.AppendGroup(&g)
	if err == nil {
		err = l.Sync()
	}
	return err
}

// TestLogGroupCrash: after a crash before any change of the file system, a log has all groups whose
// Sync had returned, and perhaps the first records of the next one. It can be continued.
func TestLogGroupCrash(t *testing.T) {
	rng := seeds.Rand(t)
	inside := 0
	for at := 1; ; at++ {
		mem := vfs.NewCrashableMem()
		logFS(t, mem)
		var left *vfs.MemFS
		var all []string
		synced, confirmed, changes := 0, 0, 0
		l, err := openGroupLog(errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
				if changes++; changes == at {
					left = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
					confirmed = synced
				}
			}
			return nil
		})))
		require.NoError(t, err)
		for i := 0; i < 15 && left == nil; i++ {
			var names []string
			for j := range 1 + rng.IntN(5) {
				names = append(names, fmt.Sprint(i, ".", j))
			}
			all = append(all, names...)
			require.NoError(t, l.append(strings.Repeat("x", rng.IntN(2)*9000+i), names...))
			synced = len(all)
		}
		require.NoError(t, l.Close())
		if left == nil {
			require.Greater(t, at, 30) // 36 changes at least
			break
		}
		after, err := openGroupLog(left)
		require.NoError(t, err, "change %d", at)
		found := after.names
		require.GreaterOrEqual(t, len(found), confirmed, "change %d", at)
		require.Truef(t, slices.Equal(all[:len(found)], found), "%v is not the beginning of %v", found, all)
		if len(found) > confirmed && len(found) < len(all) {
			inside++
		}
		require.NoError(t, after.append(strings.Repeat("y", rng.IntN(2)*9000), "next"))
		require.NoError(t, after.Close())
		after, err = openGroupLog(left)
		require.NoError(t, err)
		require.Equal(t, append(found, "next"), after.names)
		require.NoError(t, after.Close())
	}
	require.Positive(t, inside)
}

// TestLogGroupDamaged: a changed bit is damage if a group follows. In the last group it is cut off
// with the rest of the group, which never becomes valid again.
func TestLogGroupDamaged(t *testing.T) {
	names := []string{"a", "b", "c", "d", "e", "f", "g"}
	for i := range names {
		for part := range 3 {
			mem := logFS(t, vfs.NewMem())
			open := func() *groupLog {
				l, err := openGroupLog(mem)
				require.NoError(t, err)
				return l
			}
			l := open()
			require.NoError(t, l.append("value", names[:3]...))
			require.NoError(t, l.append("value", names[3]))
			require.NoError(t, l.append("value", names[4:]...))
			require.NoError(t, l.Close())
			l = open()
			require.Equal(t, names, l.names)
			require.NoError(t, l.Close())
			r := l.refs[i]
			flip(t, mem, "log/000001.seg", int64(r.Offset)+[]int64{1, headBytes, int64(r.Length) - 1}[part], 1)
			if i < 4 {
				_, err := openGroupLog(mem)
				require.ErrorIs(t, err, ErrDamaged, names[i])
				continue
			}
			l = open()
			require.Equal(t, names[:i], l.names)
			require.NoError(t, l.append("VALUE", "E")) // of the same length
			require.NoError(t, l.Close())
			l = open()
			require.Equal(t, append(slices.Clone(names[:i]), "E"), l.names)
			require.NoError(t, l.Close())
		}
	}
}
