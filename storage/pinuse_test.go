package storage

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar/record"
)

// What pins keep on disk grows when the zone replaces their tables, and is what their removal
// gives back.
func TestPinUses(t *testing.T) {
	const (
		keys  = 64
		value = 16 << 10
	)
	rng := newRNG(11)
	block := func(height int64, pinned bool) Block {
		b := Block{Meta: testMeta(height)}
		for k := range keys {
			v := make([]byte, value)
			for i := range v {
				v[i] = byte(rng.Uint32()) // does not compress
			}
			b.Puts = append(b.Puts, record.Leaf{Key: fmt.Appendf(nil, "key %02d", k), Value: v})
		}
		if pinned {
			pinWith(&b, withPin("snapshot"))
		}
		return b
	}
	fs := vfs.NewMem()
	s := openZone(t, fs)
	require.Empty(t, s.PinUses())
	write(t, s, block(1, true))
	write(t, s, block(2, false))
	compact := func() {
		t.Helper()
		require.NoError(t, s.Compact(t.Context(), func(uint64, uint64) {}))
	}
	// Tables that the database no longer needs are deleted in the background.
	settled := func(want func(map[int64]uint64) bool) map[int64]uint64 {
		t.Helper()
		for {
			s.measurePins()
			if uses := s.PinUses(); want(uses) {
				return uses
			}
			names, err := fs.List("zone")
			require.NoError(t, err)
			require.NotEmpty(t, names)
		}
	}
	compact()
	one := settled(func(uses map[int64]uint64) bool { return len(uses) == 1 && uses[1] > keys*value })
	require.Less(t, one[1], uint64(2*keys*value))

	write(t, s, block(3, true))
	write(t, s, block(4, false))
	compact()
	two := settled(func(uses map[int64]uint64) bool { return len(uses) == 2 && uses[3] > keys*value })
	require.Equal(t, one[1], two[1])
	require.Less(t, two[3], uint64(4*keys*value), "it has the tables of two blocks")

	size := func() (sum uint64) {
		names, err := fs.List(s.opts.PinDir)
		require.NoError(t, err)
		for _, name := range names {
			files, err := fs.List(fs.PathJoin(s.opts.PinDir, name))
			require.NoError(t, err)
			for _, f := range files {
				info, err := fs.Stat(fs.PathJoin(s.opts.PinDir, name, f))
				require.NoError(t, err)
				sum += uint64(info.Size())
			}
		}
		return sum
	}
	before := size()
	require.NoError(t, s.DropPin(1))
	require.Equal(t, two[1], before-size(), "removal gives back what the pin kept")
	// The engine may have deleted further tables meanwhile, which then count.
	onlyThird := func(uses map[int64]uint64) {
		t.Helper()
		require.Len(t, uses, 1)
		require.GreaterOrEqual(t, uses[3], two[3])
		require.Less(t, uses[3], uint64(4*keys*value))
	}
	s.measurePins()
	onlyThird(s.PinUses())

	require.NoError(t, s.Close())
	s = openZone(t, fs)
	onlyThird(s.PinUses()) // measured when the zone is opened
	require.NotEmpty(t, bytes.TrimSpace(s.Pins()[0].Data))
}
