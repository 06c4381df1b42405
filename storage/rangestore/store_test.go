package rangestore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/bubble"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/storage"
)

var (
	middle = avlstar.KeyRange{First: key(500), After: key(2500)}
	// upper is large enough for pages: Load keeps leaves in memory that are near an edge.
	upper     = avlstar.KeyRange{First: key(100)}
	upperKeys = 8000
)

// TestCreate: the state of any height is stored, also that before the first block, the empty one,
// and one without keys of the range. It replaces every other.
func TestCreate(t *testing.T) {
	fs := vfs.NewMem()
	m := NewMemory(0)
	s := open(t, fs, "range", middle, m)
	rng := seeds.Rand(t)
	_, _, ok, err := s.Load(t.Context(), func(uint64) {})
	require.NoError(t, err)
	require.False(t, ok)
	for height, n := range []int{3000, 0, 10, 4000, 501} {
		v := tree(t, n)
		create(t, s, int64(height), v)
		for range 2 {
			durable, ok := s.Durable()
			require.True(t, ok)
			require.EqualValues(t, height, durable)
			at, p := load(t, s)
			require.EqualValues(t, height, at)
			requireSame(t, rng, v, p, middle)
			next, err := v.Apply([]avlstar.Change{{Key: key(700), Value: []byte("new")}})
			require.NoError(t, err)
			after, _ := replay(t, p, next, v, middle, []avlstar.Change{{Key: key(700), Value: []byte("new")}})
			requireSame(t, rng, next, after, middle)
			next.Release()
			after.Release()
			p.Release()
			require.NoError(t, s.Close())
			s = open(t, fs, "range", middle, m)
		}
	}
	require.Positive(t, s.Bytes())
	require.NoError(t, s.Close())
	keys, height, ok, err := KeysOf(fs, "range", testChain)
	require.NoError(t, err)
	require.True(t, ok)
	require.True(t, keys.Equal(middle))
	require.Positive(t, height)
	_, _, _, err = KeysOf(fs, "range", "another-chain")
	require.ErrorIs(t, err, ErrOther)
	_, _, ok, err = KeysOf(fs, "none", testChain)
	require.NoError(t, err)
	require.False(t, ok)
}

// TestCreateRefusesFalseLeaves: after leaves that the commitment does not have, there is no state,
// and the store can be used further.
func TestCreateRefusesFalseLeaves(t *testing.T) {
	s := open(t, vfs.NewMem(), "range", middle, NewMemory(1<<20))
	v := tree(t, 3000)
	c := v.Commitment()
	boundary, err := v.Boundary(middle)
	require.NoError(t, err)
	elsewhere, err := v.Boundary(avlstar.KeyRange{First: key(400), After: key(2500)})
	require.NoError(t, err)
	broken := errors.New("broken")
	right := leavesOf(t, v.Leaves(), middle)
	at := func(change func(l *avlstar.Leaf)) iter.Seq2[avlstar.Leaf, error] {
		leaves := slices.Clone(right)
		change(&leaves[len(leaves)-7])
		return values(leaves)
	}
	for name, bad := range map[string]struct {
		boundary []byte
		leaves   iter.Seq2[avlstar.Leaf, error]
		want     error
	}{
		"another value":          {boundary, at(func(l *avlstar.Leaf) { l.Value = []byte("false") }), avlstar.ErrOtherState},
		"an empty value":         {boundary, at(func(l *avlstar.Leaf) { l.Value = nil }), avlstar.ErrOtherState},
		"another height":         {boundary, at(func(l *avlstar.Leaf) { l.Height++ }), avlstar.ErrOtherState},
		"a height of 255":        {boundary, at(func(l *avlstar.Leaf) { l.Height = 255 }), avlstar.ErrOtherState},
		"a key twice":            {boundary, at(func(l *avlstar.Leaf) { l.Key = right[0].Key }), avlstar.ErrOtherState},
		"a leaf less":            {boundary, values(right[1:]), avlstar.ErrOtherState},
		"no leaves":              {boundary, values(nil), avlstar.ErrOtherState},
		"leaves of all ranges":   {boundary, v.Leaves(), avlstar.ErrOtherState},
		"another boundary proof": {elsewhere, values(right), avlstar.ErrOtherState},
		"no boundary proof":      {nil, values(right), avlstar.ErrOtherState},
		"leaves that end": {boundary, func(yield func(avlstar.Leaf, error) bool) {
			_ = yield(right[0], nil) && yield(avlstar.Leaf{}, broken)
		}, broken},
	} {
		create(t, s, 5, v)
		require.ErrorIs(t, s.Create(6, c, bad.boundary, bad.leaves), bad.want, name)
		_, ok := s.Durable()
		require.False(t, ok, name)
		_, _, ok, err := s.Load(t.Context(), func(uint64) {})
		require.NoError(t, err)
		require.False(t, ok, name)
	}
	require.Error(t, s.Create(-1, c, boundary, values(right)))
	create(t, s, 6, v)
	require.NoError(t, s.Close())
}

// TestInterruptedCreate: what an interrupted Create has left is removed by the next Open.
func TestInterruptedCreate(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := open(t, fs, "range", middle, NewMemory(0))
	v := tree(t, 3000)
	boundary, err := v.Boundary(middle)
	require.NoError(t, err)
	var crashed *vfs.MemFS
	require.NoError(t, s.Create(1, v.Commitment(), boundary, func(yield func(avlstar.Leaf, error) bool) {
		for l, err := range values(leavesOf(t, v.Leaves(), middle)) {
			if !yield(l, err) {
				return
			}
		}
		crashed = fs.CrashClone(vfs.CrashCloneCfg{})
	}))
	require.NoError(t, s.Close())
	_, err = crashed.Stat("range/restore")
	require.NoError(t, err)
	s = open(t, crashed, "range", middle, NewMemory(0))
	_, ok := s.Durable()
	require.False(t, ok)
	_, err = crashed.Stat("range/restore")
	require.Error(t, err)
	create(t, s, 1, v)
	require.NoError(t, s.Close())
}

// TestOther: the state of another chain, of another range, or of no range, is refused.
func TestOther(t *testing.T) {
	fs := vfs.NewMem()
	m := NewMemory(0)
	s := open(t, fs, "range", middle, m)
	create(t, s, 1, tree(t, 3000))
	require.NoError(t, s.Close())
	zone, err := storage.Open("whole", storage.Options{FS: fs})
	require.NoError(t, err)
	require.NoError(t, zone.Write(storage.Block{Meta: storage.Meta{Height: 1, AppHash: []byte("hash"), ChainID: testChain}}))
	require.NoError(t, zone.Close())
	right := Options{Dir: "range", FS: fs, Keys: middle, ChainID: testChain, Memory: m}
	for name, change := range map[string]func(*Options){
		"another chain": func(o *Options) { o.ChainID = "another" },
		"another range": func(o *Options) { o.Keys.After = key(2501) },
		"no range":      func(o *Options) { o.Dir = "whole" },
	} {
		o := right
		change(&o)
		_, err := Open(o)
		require.ErrorIs(t, err, ErrOther, name)
	}
	require.Empty(t, m.mu.all)
	o := right
	o.Keys = avlstar.KeyRange{First: key(2), After: key(1)}
	_, err = Open(o)
	require.Error(t, err)
	s, err = Open(right)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
}

// TestLoadEndsWithItsContext: a caller that shuts down does not wait for a large range.
func TestLoadEndsWithItsContext(t *testing.T) {
	s := open(t, vfs.NewMem(), "range", avlstar.KeyRange{}, NewMemory(0))
	create(t, s, 1, tree(t, 3000))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, _, err := s.Load(ctx, func(uint64) {})
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, s.Close())
}

// flip flips a bit of a file.
func flip(t *testing.T, fs vfs.FS, path string, rng *rand.Rand) {
	t.Helper()
	file, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if errors.Is(err, os.ErrNotExist) {
		return // settled meanwhile
	}
	require.NoError(t, err)
	info, err := file.Stat()
	require.NoError(t, err)
	if info.Size() > 0 {
		at, b := rng.Int64N(info.Size()), make([]byte, 1)
		_, err = file.ReadAt(b, at)
		require.NoError(t, err)
		b[0] ^= 1 << rng.IntN(8)
		_, err = file.WriteAt(b, at)
		require.NoError(t, err)
	}
	require.NoError(t, file.Close())
}

// TestDamage: on a disk that damages data, a range is refused, or a page is, or all is right: never
// another value, or absence.
func TestDamage(t *testing.T) {
	rounds := 40
	if testing.Short() {
		rounds = 20
	}
	rng := seeds.Rand(t)
	v := tree(t, upperKeys)
	stored := func(fs vfs.FS) {
		s := open(t, fs, "range", upper, NewMemory(0))
		create(t, s, 1, v)
		if rng.IntN(2) == 0 {
			require.NoError(t, s.Flush(t.Context()))
		}
		require.NoError(t, s.Close())
	}
	heal := func(fs vfs.FS) {
		require.NoError(t, Remove(fs, "range"))
		s := open(t, fs, "range", upper, NewMemory(0))
		create(t, s, 2, v)
		_, p := load(t, s)
		p.Release()
		require.NoError(t, s.Close())
	}
	refused, pages := 0, 0
	for round := 0; round < rounds || refused == 0 || pages == 0; round++ {
		fs := vfs.NewMem()
		stored(fs)
		var files []string
		for _, dir := range []string{"range", "range/restore"} {
			names, _ := fs.List(dir) // settled states have no restore
			for _, name := range names {
				if strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, ".runs") || name == "COMPLETE" {
					files = append(files, fs.PathJoin(dir, name))
				}
			}
		}
		early := rng.IntN(2) == 0
		if early {
			flip(t, fs, files[rng.IntN(len(files))], rng)
		}
		s, err := Open(Options{Dir: "range", FS: fs, Keys: upper, ChainID: testChain, Memory: NewMemory(0), blockCache: 1})
		if err != nil {
			require.ErrorIs(t, err, storage.ErrCorrupt)
			require.ErrorContains(t, err, remedy)
			heal(fs)
			refused++
			continue
		}
		_, p, ok, err := s.Load(t.Context(), func(uint64) {})
		if err != nil || !ok {
			require.ErrorIs(t, err, storage.ErrCorrupt)
			require.ErrorContains(t, err, remedy)
			refused++
			require.NoError(t, s.Close())
			heal(fs)
			continue
		}
		if !early {
			for range 1 + rng.IntN(20) {
				flip(t, fs, files[rng.IntN(len(files))], rng)
			}
		}
		for range 100 {
			i := 100 + rng.IntN(upperKeys-100)
			value, ok, err := p.Get(key(i))
			var page *avlstar.PageError
			if errors.As(err, &page) {
				pages++
				continue
			}
			require.NoError(t, err)
			require.True(t, ok)
			want, _, err := v.Get(key(i))
			require.NoError(t, err)
			require.Equal(t, string(want), string(value))
		}
		p.Release()
		require.NoError(t, s.Close())
	}
}

// TestLoadVerifies: leaves with valid checksums that are not those of the commitment are refused,
// by the whole range and page by page.
func TestLoadVerifies(t *testing.T) {
	fs := vfs.NewMem()
	s := open(t, fs, "range", upper, NewMemory(0))
	create(t, s, 1, tree(t, upperKeys))
	require.NoError(t, s.Flush(t.Context()))
	_, p := load(t, s)
	meta, _ := s.zone.Meta()
	meta.Height = 2
	require.NoError(t, s.zone.Write(storage.Block{Meta: meta, Puts: []avlstar.Leaf{{Key: key(6000), Value: []byte("value 6001")}}}))
	require.NoError(t, s.Flush(t.Context()))
	s.Trim(2, nil)
	_, _, err := p.Get(key(6000))
	require.ErrorIs(t, err, storage.ErrNoPage)
	var page *avlstar.PageError
	require.ErrorAs(t, err, &page)
	_, ok, err := p.Get(key(7000))
	require.NoError(t, err)
	require.True(t, ok)
	_, _, ok, err = s.Load(t.Context(), func(uint64) {})
	require.ErrorIs(t, err, storage.ErrCorrupt)
	require.False(t, ok)
	p.Release()

	meta.Height, meta.AppHash = 3, []byte("another")
	require.NoError(t, s.zone.Write(storage.Block{Meta: meta}))
	require.NoError(t, s.Close())
	_, err = Open(Options{Dir: "range", FS: fs, Keys: upper, ChainID: testChain, Memory: NewMemory(0)})
	require.ErrorIs(t, err, storage.ErrCorrupt)
}

// TestDamagedEdge: a commit names the page at an edge of the range that the disk does not have. It
// reads that page for the boundary proof, and a start from the page list did not.
func TestDamagedEdge(t *testing.T) {
	s := open(t, vfs.NewMem(), "range", upper, NewMemory(0))
	first := tree(t, upperKeys)
	create(t, s, 1, first)
	require.NoError(t, s.Flush(t.Context()))
	after := func(v *avlstar.Version, k int) (*avlstar.Version, []avlstar.Change) {
		block := []avlstar.Change{{Key: key(k), Value: []byte("changed")}}
		next, err := v.Apply(block)
		require.NoError(t, err)
		t.Cleanup(next.Release)
		return next, block
	}
	_, p := load(t, s)
	second, block := after(first, 5000)
	next, changes := replay(t, p, second, first, upper, block)
	require.NoError(t, s.Commit(2, next, p, changes))
	require.NoError(t, s.Flush(t.Context()))
	next.Release()
	p.Release()
	_, p = load(t, s)
	require.True(t, s.list.Known())

	meta, _ := s.zone.Meta()
	meta.Height = 3
	require.NoError(t, s.zone.Write(storage.Block{Meta: meta, Puts: []avlstar.Leaf{{Key: upper.First, Value: []byte("another")}}}))
	require.NoError(t, s.Flush(t.Context()))
	s.Trim(3, nil)
	third, block := after(second, 6000)
	next, changes = replay(t, p, third, second, upper, block)
	var page *avlstar.PageError
	err := s.Commit(4, next, p, changes)
	require.ErrorIs(t, err, storage.ErrNoPage)
	require.ErrorAs(t, err, &page)
	next.Release()
	p.Release()
	require.NoError(t, s.Close())
}

// TestScrub: the pages of the range are verified again and again, and nothing outside of it; a page
// that differs from the one that was stored is damage.
func TestScrub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, vfs.NewMem(), "range", upper, NewMemory(0))
		create(t, s, 1, tree(t, upperKeys))
		require.NoError(t, s.Flush(t.Context()))
		_, p := load(t, s)
		all := uint64(0)
		for page := range p.Pages(nil) {
			require.True(t, upper.Covers(avlstar.KeyRange{First: page.First, After: page.After}))
			all += page.Bytes
		}
		require.Greater(t, all, uint64(50_000))
		ended := make(chan error)
		go func() {
			ended <- s.Scrub(t.Context(), func() *avlstar.Partial { p.Retain(); return p }, 1<<20)
		}()
		for s.ScrubStats().Passes < 3 {
			bubble.Sleep(time.Second)
			synctest.Wait()
		}
		require.Equal(t, s.ScrubStats().Passes, s.ScrubStats().Bytes/all)
		meta, _ := s.zone.Meta()
		meta.Height = 2
		require.NoError(t, s.zone.Write(storage.Block{Meta: meta, Puts: []avlstar.Leaf{{Key: key(6000), Value: []byte("value 6001")}}}))
		require.NoError(t, s.Flush(t.Context()))
		s.Trim(2, nil)
		require.ErrorIs(t, <-ended, storage.ErrCorrupt)
		p.Release()
		require.NoError(t, s.Close())
	})
}

// TestScrubEnds: the end of the context is no error.
func TestScrubEnds(t *testing.T) {
	s := open(t, vfs.NewMem(), "range", upper, NewMemory(0))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, s.Scrub(ctx, func() *avlstar.Partial { return nil }, 1<<20))
	require.NoError(t, s.Close())
	require.Error(t, s.Flush(t.Context()))
}

// TestUncommittedStays: versions that were not committed stay in memory, even without a budget.
func TestUncommittedStays(t *testing.T) {
	rng := seeds.Rand(t)
	s := open(t, vfs.NewMem(), "range", upper, NewMemory(0))
	v := tree(t, upperKeys)
	create(t, s, 1, v)
	_, p := load(t, s)
	first := p
	first.Retain()
	for i := range 80 { // none is committed, and pages that changed long ago may not be evicted
		block := []avlstar.Change{{Key: key(500 + i*20), Value: fmt.Append(nil, i)}}
		next, err := v.Apply(block)
		require.NoError(t, err)
		after, _ := replay(t, p, next, v, upper, block)
		p.Release()
		if i > 0 {
			v.Release()
		}
		p, v = after, next
	}
	requireSame(t, rng, v, p, upper)
	v.Release()
	p.Release()
	first.Release()
	require.NoError(t, s.Close())
}
