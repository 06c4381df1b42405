package rangestore

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/storage"
)

// partsOf cuts a range of v into subtrees of at most limit bytes, and the leaves at its edges.
func partsOf(t *testing.T, v *avlstar.Version, keys avlstar.KeyRange, limit uint64) (parts []avlstar.Part) {
	t.Helper()
	p, err := v.Prune(func(s avlstar.Subtree) bool {
		r := avlstar.KeyRange{First: s.First, After: s.After}
		return !keys.Overlaps(r) || keys.Covers(r) && (s.Height == 0 || s.Bytes <= limit)
	})
	require.NoError(t, err)
	t.Cleanup(p.Release)
	for s := range p.Parts(nil) {
		if s.Value == nil && keys.Contains(s.First) || s.Value != nil && keys.Contains(s.Key) {
			parts = append(parts, s)
		}
	}
	return parts
}

// addPart adds a part of v as one piece.
func addPart(t *testing.T, f *Fill, v *avlstar.Version, s avlstar.Part) {
	t.Helper()
	var records []byte
	least := s.First
	if s.Value != nil {
		least = s.Key
	}
	leaves := leavesOf(t, v.Leaves(), avlstar.KeyRange{First: least, After: s.After})
	for _, l := range leaves {
		records = record.Append(records, l)
	}
	require.NoError(t, f.Add(Piece{Root: s.Stub, First: leaves[0].Key, Boundary: s.Boundary}, records))
}

func countMissing(have []bool) (n int) {
	for _, h := range have {
		if !h {
			n++
		}
	}
	return n
}

func fill(t *testing.T, s *Store) *Fill {
	t.Helper()
	f, err := s.Fill(t.Context())
	require.NoError(t, err)
	return f
}

// TestFill: pieces survive kills, those of a subtree that has changed are removed, also where the
// subtrees of the next height are larger, and the result is the state of the last height.
func TestFill(t *testing.T) {
	for _, keys := range []avlstar.KeyRange{middle, {}, {First: key(0)}, {After: key(7)}, {First: []byte("z")}} {
		t.Run(fmt.Sprint(keys), func(t *testing.T) {
			rng, fs := seeds.Rand(t), vfs.NewCrashableMem()
			m := NewMemory(0)
			s := open(t, fs, "range", keys, m)
			f := fill(t, s)
			v := tree(t, 3000)
			parts := partsOf(t, v, keys, 4000)
			have, err := f.Keep(parts)
			require.NoError(t, err)
			require.Equal(t, len(parts), countMissing(have))
			added := 0
			for _, part := range parts {
				if rng.IntN(2) == 0 {
					addPart(t, f, v, part)
					added++
				}
			}
			killed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng})
			require.NoError(t, s.Close())
			s = open(t, killed, "range", keys, m)
			_, ok := s.Durable()
			require.False(t, ok)
			f = fill(t, s)
			size := f.Bytes()
			have, err = f.Keep(parts)
			require.NoError(t, err)
			require.Equal(t, len(parts)-added, countMissing(have))
			require.Equal(t, size, f.Bytes())

			// a few keys change, and nodes move
			var changes []avlstar.Change
			for i := range 3 {
				changes = append(changes, avlstar.Change{Key: key(1000*i + rng.IntN(1000)), Value: []byte("changed")})
			}
			changes = append(changes, avlstar.Change{Key: key(3001), Value: []byte("new")})
			next, err := v.Apply(changes)
			require.NoError(t, err)
			defer next.Release()
			parts = partsOf(t, next, keys, 4000)
			have, err = f.Keep(parts)
			require.NoError(t, err)
			t.Logf("%d parts, %d added, %d missing after changes", len(parts), added, countMissing(have))
			require.LessOrEqual(t, countMissing(have), len(parts)-added+len(changes)+5)
			for i, part := range parts {
				if !have[i] {
					addPart(t, f, next, part)
				}
			}
			boundary, err := next.Boundary(keys)
			require.NoError(t, err)
			commit := f.Commit
			if rng.IntN(2) == 0 {
				commit = f.CommitUnread
			}
			require.NoError(t, commit(t.Context(), 9, next.Commitment(), boundary))
			off := killed.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
			require.NoError(t, s.Close())
			for _, fs := range []*vfs.MemFS{killed, off} {
				s = open(t, fs, "range", keys, m)
				height, p := load(t, s)
				require.EqualValues(t, 9, height)
				requireSame(t, rng, next, p, keys)
				p.Release()
				require.NoError(t, s.Close())
			}
		})
	}
}

// TestFillInParts: several pieces make up a subtree of the next height. That needs pieces that
// cannot be larger, as those of an earlier Fill are.
func TestFillInParts(t *testing.T) {
	empty, err := avlstar.Empty(1000)
	require.NoError(t, err)
	defer empty.Release()
	var changes []avlstar.Change
	for i := range 40 {
		changes = append(changes, avlstar.Change{Key: key(i), Value: bytes.Repeat([]byte{byte(i)}, 300_000)})
	}
	v, err := empty.Apply(changes)
	require.NoError(t, err)
	defer v.Release()
	all := avlstar.KeyRange{}
	s := open(t, vfs.NewMem(), "range", all, NewMemory(0))
	f := fill(t, s)
	for _, part := range partsOf(t, v, all, PieceBytes) {
		addPart(t, f, v, part)
	}
	parts := partsOf(t, v, all, 4*PieceBytes)
	have, err := f.Keep(parts)
	require.NoError(t, err)
	require.Zero(t, countMissing(have))
	require.Equal(t, v.Root().Bytes, f.Bytes())
	boundary, err := v.Boundary(all)
	require.NoError(t, err)
	require.NoError(t, f.Commit(t.Context(), 1, v.Commitment(), boundary))
	require.NoError(t, s.Close())
}

// TestDamagedFill: a damaged piece is removed by the next Fill, and pieces of another state are no
// state: Commit finds that out, or Load after CommitUnread.
func TestDamagedFill(t *testing.T) {
	rng, fs := seeds.Rand(t), vfs.NewCrashableMem()
	s := open(t, fs, "range", middle, NewMemory(0))
	f := fill(t, s)
	v := tree(t, 3000)
	parts := partsOf(t, v, middle, 4000)
	for _, part := range parts {
		addPart(t, f, v, part)
	}
	require.NoError(t, f.Add(Piece{Root: avlstar.Stub{Stat: avlstar.Stat{Bytes: 3}}, First: []byte("z")}, record.Append(nil, record.Leaf{Key: []byte("z"), Value: []byte("z")})))
	before := f.Bytes()
	require.NoError(t, s.Close())
	s = open(t, fs, "range", middle, NewMemory(0))
	f = fill(t, s)
	require.Less(t, f.Bytes(), before)
	have, err := f.Keep(parts)
	require.NoError(t, err)
	require.Zero(t, countMissing(have))

	boundary, err := v.Boundary(middle)
	require.NoError(t, err)
	_, err = f.Keep(parts[1:])
	require.NoError(t, err)
	require.ErrorIs(t, f.Commit(t.Context(), 1, v.Commitment(), boundary), avlstar.ErrOtherState)
	require.NoError(t, s.Close())
	unread := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng})
	s = open(t, unread, "range", middle, NewMemory(0))
	f = fill(t, s)
	_, err = f.Keep(parts[1:])
	require.NoError(t, err)
	require.NoError(t, f.CommitUnread(t.Context(), 1, v.Commitment(), boundary))
	require.NoError(t, s.Close())
	s = open(t, unread, "range", middle, NewMemory(0))
	_, _, _, err = s.Load(t.Context(), func(uint64) {})
	require.ErrorIs(t, err, storage.ErrCorrupt)
	require.NoError(t, s.Close())

	// what is left of another range is discarded
	other := open(t, fs, "range", avlstar.KeyRange{First: key(1)}, NewMemory(0))
	require.Zero(t, fill(t, other).Bytes())
	require.NoError(t, other.Close())
}

// TestFillAtAnotherHeight: a height at which nothing arrives removes no piece, also after a kill.
// What arrives there replaces only pieces with its keys.
func TestFillAtAnotherHeight(t *testing.T) {
	rng, fs := seeds.Rand(t), vfs.NewCrashableMem()
	m := NewMemory(0)
	s := open(t, fs, "range", middle, m)
	f := fill(t, s)
	v := tree(t, 3000)
	parts := partsOf(t, v, middle, 4000)
	for _, part := range parts {
		if rng.IntN(4) > 0 {
			addPart(t, f, v, part)
		}
	}
	have, err := f.Keep(parts)
	require.NoError(t, err)
	missing, size := countMissing(have), f.Bytes()

	var changes []avlstar.Change
	for i := range 3000 {
		changes = append(changes, avlstar.Change{Key: key(i), Value: []byte("lower")})
	}
	lower, err := v.Apply(changes)
	require.NoError(t, err)
	defer lower.Release()
	others := partsOf(t, lower, middle, 4000)
	require.Less(t, len(others), len(parts))
	have, err = f.Keep(others)
	require.NoError(t, err)
	require.Equal(t, len(others), countMissing(have))
	require.Equal(t, size, f.Bytes(), "the choice of a height removed pieces")

	killed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng})
	require.NoError(t, s.Close())
	s = open(t, killed, "range", middle, m)
	f = fill(t, s)
	have, err = f.Keep(parts)
	require.NoError(t, err)
	require.Equal(t, missing, countMissing(have))

	_, err = f.Keep(others)
	require.NoError(t, err)
	one := others[rng.IntN(len(others))]
	addPart(t, f, lower, one)
	have, err = f.Keep(parts)
	require.NoError(t, err)
	overlap := 0
	for _, part := range parts {
		if (avlstar.KeyRange{First: one.First, After: one.After}).Overlaps(avlstar.KeyRange{First: part.First, After: part.After}) {
			overlap++
		}
	}
	require.LessOrEqual(t, countMissing(have)-missing, overlap)
	require.NoError(t, s.Close())

	// all pieces of one height, and some of the other
	s = open(t, killed, "range", middle, m)
	f = fill(t, s)
	have, err = f.Keep(others)
	require.NoError(t, err)
	for i, part := range others {
		if !have[i] {
			addPart(t, f, lower, part)
		}
	}
	boundary, err := lower.Boundary(middle)
	require.NoError(t, err)
	require.NoError(t, f.Commit(t.Context(), 4, lower.Commitment(), boundary))
	height, p := load(t, s)
	require.EqualValues(t, 4, height)
	requireSame(t, rng, lower, p, middle)
	p.Release()
	require.NoError(t, s.Close())
}

// TestFillCommitStops: Commit ends with its context, and the next Fill has all pieces.
func TestFillCommitStops(t *testing.T) {
	fs := vfs.NewMem()
	s := open(t, fs, "range", middle, NewMemory(0))
	f := fill(t, s)
	v := tree(t, 3000)
	parts := partsOf(t, v, middle, 4000)
	for _, part := range parts {
		addPart(t, f, v, part)
	}
	boundary, err := v.Boundary(middle)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, f.Commit(ctx, 1, v.Commitment(), boundary), context.Canceled)
	require.NoError(t, s.Close())
	s = open(t, fs, "range", middle, NewMemory(0))
	f = fill(t, s)
	have, err := f.Keep(parts)
	require.NoError(t, err)
	require.Zero(t, countMissing(have))
	require.NoError(t, f.Commit(t.Context(), 1, v.Commitment(), boundary))
	require.NoError(t, s.Close())
}
