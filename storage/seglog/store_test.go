package seglog

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

const smallLimit = 4 << 10

// entry is the entry of a key in the index.
type entry struct {
	ref   Ref
	value string
}

// user is an in-memory index over a store.
type user struct {
	fs      vfs.FS
	store   *Store
	entries map[string]entry
	ends    map[uint32]uint64
}

func newUser(t testing.TB, fs vfs.FS) *user {
	t.Helper()
	require.NoError(t, fs.MkdirAll("zone", 0o755))
	u := &user{fs: fs, entries: map[string]entry{}, ends: map[uint32]uint64{}}
	u.open(t)
	return u
}

func (u *user) open(t testing.TB) {
	t.Helper()
	var err error
	u.store, err = Open(Options{FS: u.fs, Dir: "zone", Ends: maps.Clone(u.ends), Limit: smallLimit})
	require.NoError(t, err)
}

// put appends pairs, which the group copies, and indexes them when they are durable.
func (u *user) put(pairs ...string) error {
	var g Group
	for i := 0; i < len(pairs); i += 2 {
		g.Add([]byte(pairs[i]), []byte(pairs[i+1]))
	}
	refs, end, err := u.store.Append(&g)
	if err == nil {
		err = u.store.Sync()
	}
	if err != nil {
		return err
	}
	for i, ref := range refs {
		u.entries[pairs[2*i]] = entry{ref, pairs[2*i+1]}
	}
	u.ends[u.store.Active()] = end
	return nil
}

// live reports whether the index refers to a segment.
func (u *user) live(number uint32) bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(u.entries)), func(e entry) bool { return e.ref.Segment == number })
}

// check reads every record by its location, and then finds it again from record to record.
func (u *user) check(t testing.TB) {
	t.Helper()
	require.Equal(t, slices.Sorted(maps.Keys(u.ends)), u.store.All())
	for key, e := range u.entries {
		value, err := u.store.Read([]byte(key), e.ref)
		require.NoError(t, err)
		require.Equal(t, e.value, string(value))
	}
	found, bytes := 0, uint64(0)
	for number, end := range u.ends {
		require.Equal(t, end, u.store.End(number))
		bytes += end
		for offset := uint64(0); ; {
			key, ref, ok, err := u.store.Next(number, offset)
			require.NoError(t, err)
			if !ok {
				require.Equal(t, end, offset)
				break
			}
			if e, is := u.entries[string(key)]; is && e.ref == ref {
				found++
			}
			offset += uint64(ref.Length)
		}
	}
	require.Equal(t, len(u.entries), found)
	require.Equal(t, bytes, u.store.Bytes())
}

// TestModel: random appends, reads, removals and restarts give the same results as a map, over many
// segments.
func TestModel(t *testing.T) {
	rng := seeds.Rand(t)
	u := newUser(t, vfs.NewMem())
	removed := 0
	for range 3000 {
		switch op := rng.IntN(100); {
		case op < 50:
			var pairs []string
			for range 1 + rng.IntN(4) {
				key := strings.Repeat("long ", rng.IntN(2)*rng.IntN(100)) + fmt.Sprint(rng.IntN(50))
				pairs = append(pairs, key, strings.Repeat(fmt.Sprint(rng.IntN(1000), " "), rng.IntN(200)))
			}
			require.NoError(t, u.put(pairs...))
		case op < 70: // some have no references in the index
			// The order of a map differs in each run.
			keys := slices.Sorted(maps.Keys(u.entries))
			rng.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
			for _, key := range keys {
				if delete(u.entries, key); rng.IntN(3) == 0 {
					break
				}
			}
		case op < 90:
			for _, number := range slices.Sorted(maps.Keys(u.ends)) {
				if number != u.store.Active() && !u.live(number) {
					require.NoError(t, u.store.Remove(number))
					delete(u.ends, number)
					removed++
				}
			}
		case op < 93:
			require.NoError(t, u.store.Close())
			u.open(t)
		default:
			u.check(t)
		}
	}
	u.check(t)
	require.Greater(t, removed, 20)
	require.Greater(t, u.store.Active(), uint32(20))
	for number, end := range u.ends { // none exceeds the limit by more than one group
		require.Less(t, end, uint64(smallLimit+4*2000), number)
	}
	require.NoError(t, u.store.Close())
	left, err := Numbers(u.fs, "zone")
	require.NoError(t, err)
	require.Equal(t, slices.Sorted(maps.Keys(u.ends)), left)
}

// TestCrash: after a crash at any change of the file system, with any of the unsynced data kept or
// lost, synced and indexed records exist, and appending continues.
func TestCrash(t *testing.T) {
	crashes := 60
	if testing.Short() {
		crashes = 15
	}
	rng := seeds.Rand(t)
	for range crashes {
		mem := vfs.NewCrashableMem()
		var u *user
		var left *vfs.MemFS
		var entries map[string]entry
		var ends map[uint32]uint64
		crashAt, changes := 1+rng.IntN(250), 0
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
				if changes++; changes >= crashAt && u != nil && left == nil {
					left = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
					entries, ends = maps.Clone(u.entries), maps.Clone(u.ends)
				}
			}
			return nil
		}))
		require.NoError(t, mem.MkdirAll("zone", 0o755))
		root, err := mem.OpenDir("")
		require.NoError(t, err)
		require.NoError(t, root.Sync())
		u = newUser(t, fs)
		for left == nil {
			require.NoError(t, u.put(fmt.Sprint(rng.IntN(30)), strings.Repeat(fmt.Sprint(rng.IntN(1000)), rng.IntN(1000))))
			for number := range u.ends {
				if number != u.store.Active() && !u.live(number) {
					delete(u.ends, number) // durably, before the removal:
					require.NoError(t, u.store.Remove(number))
				}
			}
			if rng.IntN(20) == 0 {
				require.NoError(t, u.store.Close())
				u.open(t)
			}
		}
		after := &user{fs: left, entries: entries, ends: ends}
		after.open(t)
		after.check(t)
		for i := range 20 {
			require.NoError(t, after.put(fmt.Sprint(i), "later"))
		}
		after.check(t)
		require.NoError(t, after.store.Close())
	}
}

// TestFlippedByte: any changed bit of a file is an error of its record, and of no other.
func TestFlippedByte(t *testing.T) {
	rng := seeds.Rand(t)
	mem := vfs.NewMem()
	u := newUser(t, mem)
	for i := range 20 {
		require.NoError(t, u.put(fmt.Sprint("key ", i), strings.Repeat(fmt.Sprint(i), 5)))
	}
	require.EqualValues(t, 1, u.store.Active())
	for range 300 {
		at := rng.Uint64N(u.ends[1])
		flip(t, mem, "zone/000001.seg", int64(at), byte(1<<rng.IntN(8)))
		for key, e := range u.entries {
			value, err := u.store.Read([]byte(key), e.ref)
			if at >= e.ref.Offset && at < e.ref.Offset+uint64(e.ref.Length) {
				require.ErrorIs(t, err, ErrDamaged)
				require.ErrorContains(t, err, "file zone/000001.seg, record at ")
				headEnd := e.ref.Offset + headBytes + uint64(len(key))
				got, ref, ok, err := u.store.Next(1, e.ref.Offset)
				if at < headEnd {
					require.ErrorIs(t, err, ErrDamaged)
				} else {
					require.NoError(t, err)
					require.True(t, ok)
					require.Equal(t, key, string(got))
					require.Equal(t, e.ref, ref)
				}
				continue
			}
			require.NoError(t, err)
			require.Equal(t, e.value, string(value))
		}
		restore(t, mem, "zone/000001.seg")
	}
	u.check(t)
}

var flipped struct {
	at   int64
	mask byte
}

func flip(t testing.TB, fs vfs.FS, path string, at int64, mask byte) {
	t.Helper()
	file, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	var b [1]byte
	_, err = file.ReadAt(b[:], at)
	require.NoError(t, err)
	b[0] ^= mask
	_, err = file.WriteAt(b[:], at)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	flipped.at, flipped.mask = at, mask
}

func restore(t testing.TB, fs vfs.FS, path string) {
	t.Helper()
	flip(t, fs, path, flipped.at, flipped.mask)
}

// TestWrongRef: a Ref that does not match the record of the key is an error, wherever it points.
func TestWrongRef(t *testing.T) {
	u := newUser(t, vfs.NewMem())
	require.NoError(t, u.put("a", "first", "b", "second"))
	a, b := u.entries["a"].ref, u.entries["b"].ref
	for name, r := range map[string]Ref{
		"another record":  b,
		"another length":  {a.Segment, a.Offset, a.Length + 1, a.Sum},
		"shorter":         {a.Segment, a.Offset, a.Length - 1, a.Sum},
		"another content": {a.Segment, a.Offset, a.Length, a.Sum + 1},
		"within a record": {a.Segment, a.Offset + 1, a.Length, a.Sum},
		"beyond the end":  {a.Segment, 1 << 40, a.Length, a.Sum},
		"across the end":  {b.Segment, b.Offset, 1 << 30, b.Sum},
	} {
		_, err := u.store.Read([]byte("a"), r)
		require.ErrorIs(t, err, ErrDamaged, name)
	}
	_, err := u.store.Read([]byte("a"), Ref{Segment: 2, Length: 10})
	require.ErrorIs(t, err, ErrGone)
}

// TestOpen: segments in the index must exist. Others are removed, unless the store is read-only.
// Files with other names are kept.
func TestOpen(t *testing.T) {
	mem := vfs.NewMem()
	u := newUser(t, mem)
	for i := range 20 {
		require.NoError(t, u.put(fmt.Sprint(i), strings.Repeat("x", 1000)))
	}
	require.NoError(t, u.store.Close())
	last := u.store.Active()
	require.Greater(t, last, uint32(3))
	for _, name := range []string{"1.seg", "000000.seg", "000001.seg.old", "x.seg", "4294967296.seg"} {
		file, err := mem.Create("zone/"+name, vfs.WriteCategoryUnspecified)
		require.NoError(t, err)
		require.NoError(t, file.Close())
	}

	missing := maps.Clone(u.ends)
	missing[last+1] = 1
	_, err := Open(Options{FS: mem, Dir: "zone", Ends: missing})
	require.ErrorIs(t, err, ErrDamaged)
	require.ErrorContains(t, err, fmt.Sprintf("file zone/%06d.seg is missing", last+1))
	short := maps.Clone(u.ends)
	short[2] += 1
	_, err = Open(Options{FS: mem, Dir: "zone", Ends: short})
	require.ErrorIs(t, err, ErrDamaged)
	require.ErrorContains(t, err, "file zone/000002.seg has ")

	unknown := maps.Clone(u.ends)
	delete(unknown, last)
	for _, readOnly := range []bool{true, false} {
		s, err := Open(Options{FS: mem, Dir: "zone", Ends: unknown, ReadOnly: readOnly})
		require.NoError(t, err)
		require.Equal(t, last-1, s.Active())
		numbers, err := Numbers(mem, "zone")
		require.NoError(t, err)
		require.Equal(t, readOnly, slices.Contains(numbers, last))
		require.NoError(t, s.Close())
	}
	names, err := mem.List("zone")
	require.NoError(t, err)
	require.Len(t, names, int(last)-1+5)
}

// TestTornTail: an incomplete end that is not indexed is overwritten.
func TestTornTail(t *testing.T) {
	mem := vfs.NewMem()
	u := newUser(t, mem)
	require.NoError(t, u.put("a", "first"))
	var g Group
	g.Add([]byte("b"), []byte(strings.Repeat("lost", 100)))
	_, _, err := u.store.Append(&g)
	require.NoError(t, err)
	require.NoError(t, u.store.Close())
	for cut := range 3 {
		u.open(t)
		u.check(t)
		require.NoError(t, u.put(fmt.Sprint("after ", cut), "written over lost bytes"))
		u.check(t)
		_, _, err := u.store.Append(&g) // lost again, completely
		require.NoError(t, err)
		require.NoError(t, u.store.Close())
	}
	require.EqualValues(t, 1, u.store.Active())
}

// TestWriteFails: after a failed write or sync, nothing more is appended, and indexed records stay
// readable.
func TestWriteFails(t *testing.T) {
	for _, kind := range []errorfs.OpKind{errorfs.OpFileWriteAt, errorfs.OpFileSyncData, errorfs.OpOpen, errorfs.OpOpenDir} {
		var broken atomic.Bool
		fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if broken.Load() && op.Kind == kind {
				return syscall.ENOSPC
			}
			return nil
		}))
		u := newUser(t, fs)
		require.NoError(t, u.put("a", strings.Repeat("x", smallLimit)))
		value, err := u.store.Read([]byte("a"), u.entries["a"].ref)
		require.NoError(t, err)
		require.Len(t, value, smallLimit)
		broken.Store(true)
		err = u.put("b", "y") // in a new segment
		require.ErrorIs(t, err, syscall.ENOSPC)
		require.ErrorContains(t, err, "file zone")
		broken.Store(false)
		require.ErrorIs(t, u.put("c", "z"), syscall.ENOSPC)
		require.ErrorIs(t, u.store.Sync(), syscall.ENOSPC)
		_, err = u.store.Read([]byte("a"), u.entries["a"].ref)
		require.NoError(t, err)
		require.NoError(t, u.store.Close())
		u.open(t)
		require.NoError(t, u.put("b", "y"))
		u.check(t)
	}
}

func TestReadFails(t *testing.T) {
	var broken atomic.Bool
	kind := errorfs.OpFileReadAt
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken.Load() && op.Kind == kind {
			return syscall.EIO
		}
		return nil
	}))
	u := newUser(t, fs)
	require.NoError(t, u.put("a", "x"))
	for _, kind = range []errorfs.OpKind{errorfs.OpOpen, errorfs.OpFileReadAt} {
		broken.Store(true)
		_, err := u.store.Read([]byte("a"), u.entries["a"].ref)
		require.ErrorIs(t, err, syscall.EIO)
		require.NotErrorIs(t, err, ErrDamaged)
		require.ErrorContains(t, err, "file zone/000001.seg")
		_, _, _, err = u.store.Next(1, 0)
		require.ErrorIs(t, err, syscall.EIO)
		broken.Store(false)
		u.check(t)
	}
}

// TestHold: records that exist when a hold begins are readable until its end, and not longer.
func TestHold(t *testing.T) {
	mem := vfs.NewMem()
	u := newUser(t, mem)
	for i := range 3 {
		require.NoError(t, u.put(fmt.Sprint(i), strings.Repeat("x", smallLimit)))
	}
	files := func() []uint32 {
		numbers, err := Numbers(mem, "zone")
		require.NoError(t, err)
		return numbers
	}
	readable := func(key string) bool {
		_, err := u.store.Read([]byte(key), u.entries[key].ref)
		if err != nil {
			require.ErrorIs(t, err, ErrGone)
		}
		return err == nil
	}
	require.Error(t, u.store.Remove(3), "it is appended to")
	require.Error(t, u.store.Remove(4))
	first, second := u.store.Hold(), u.store.Hold()
	require.NoError(t, u.store.Remove(1))
	require.Error(t, u.store.Remove(1))
	require.Equal(t, []uint32{2, 3}, u.store.All())
	later := u.store.Hold()
	require.NoError(t, second())
	require.True(t, readable("0"))
	require.Equal(t, []uint32{1, 2, 3}, files())
	require.NoError(t, first())
	require.False(t, readable("0"), "the later hold began after the removal")
	require.Equal(t, []uint32{2, 3}, files())
	require.NoError(t, u.store.Remove(2))
	require.True(t, readable("1"))
	require.NoError(t, u.store.Close())
	require.Equal(t, []uint32{3}, files())
	require.NoError(t, later())
}

// TestReadersBesideRemovals: concurrently with a writer and removals, readers get the value of
// their Ref, or ErrGone.
func TestReadersBesideRemovals(t *testing.T) {
	rng := seeds.Rand(t)
	fs := vfs.NewMem()
	u := newUser(t, fs)
	var mu sync.Mutex // guards u.entries
	known := []entry{{}}
	var done atomic.Bool
	var readers sync.WaitGroup
	var read, gone atomic.Int64
	for i := range 4 {
		rng := rand.New(rand.NewPCG(rng.Uint64(), uint64(i)))
		readers.Go(func() {
			for !done.Load() {
				mu.Lock()
				n := len(known) - 1 - rng.IntN(min(len(known), 200)) // some of these are removed
				e := known[n]
				mu.Unlock()
				if e.ref.Length == 0 {
					continue
				}
				value, err := u.store.Read(fmt.Append(nil, n), e.ref)
				switch {
				case err == nil && string(value) == e.value:
					read.Add(1)
				case errors.Is(err, ErrGone):
					gone.Add(1)
				default:
					t.Errorf("read %d: %v", n, err)
					return
				}
				if rng.IntN(100) == 0 {
					if err := u.store.Hold()(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	rounds := 3000
	if testing.Short() {
		rounds = 500
	}
	for i := 1; i < rounds || read.Load() < 1000 || gone.Load() < 10; i++ {
		value := strings.Repeat(fmt.Sprint(i, " "), rng.IntN(200))
		require.NoError(t, u.put(fmt.Sprint(i), value))
		mu.Lock()
		known = append(known, u.entries[fmt.Sprint(i)])
		mu.Unlock()
		if all := u.store.All(); len(all) > 8 {
			require.NoError(t, u.store.Remove(all[0]))
		}
	}
	done.Store(true)
	readers.Wait()
	require.NoError(t, u.store.Close())
}

// TestHandles: more segments can be read than files stay open.
func TestHandles(t *testing.T) {
	u := newUser(t, vfs.NewMem())
	for i := range 2 * maxHandles {
		require.NoError(t, u.put(fmt.Sprint(i), strings.Repeat("x", smallLimit)))
	}
	for range 2 {
		u.check(t)
		require.LessOrEqual(t, u.store.mu.handles, maxHandles)
	}
	require.NoError(t, u.store.Close())
	require.Zero(t, u.store.mu.handles)
}
