package treestore

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/bubble"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/pages"
	"github.com/starling-kv/starling/storage/sgc"
)

// scrubbed is a stored state that a scrubber verifies until stop; failed receives its reports.
type scrubbed struct {
	fs     *vfs.MemFS
	zone   *storage.Zone
	store  *Store
	v      *avlstar.Version
	failed chan error
	stop   context.CancelFunc
	ended  chan struct{}
}

func newScrubbed(t *testing.T) *scrubbed {
	t.Helper()
	s := &scrubbed{fs: vfs.NewMem(), failed: make(chan error, 1), ended: make(chan struct{})}
	var err error
	s.zone, err = storage.Open("zone", storage.Options{FS: s.fs, Generations: true, CacheBytes: 1})
	require.NoError(t, err)
	s.store = New(Options{Zone: s.zone, ChainID: testChain, Cache: sgc.New(1), Failed: func(err error) { s.failed <- err }})
	base := tree(t, 4000)
	require.NoError(t, s.store.Commit(1, base, nil, changesOf(t, base)))
	require.NoError(t, s.zone.Flush())
	_, s.v, err = s.store.Load()
	require.NoError(t, err)
	return s
}

func (s *scrubbed) start(rate int64) {
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	go func() {
		defer close(s.ended)
		s.store.Scrub(ctx, func() *avlstar.Version { s.v.Retain(); return s.v }, rate)
	}()
}

func (s *scrubbed) close(t *testing.T) {
	s.stop()
	<-s.ended
	s.v.Release()
	require.NoError(t, s.zone.Close())
}

// TestScrub: the scrubber reads all pages repeatedly, no faster than configured.
func TestScrub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScrubbed(t)
		all := uint64(0)
		for page := range s.v.Stubs(nil) {
			all += page.Bytes
		}
		require.Greater(t, all, uint64(pages.ScrubStep))
		const rate = 10_000
		began := time.Now()
		s.start(rate)
		for range 100 {
			bubble.Sleep(time.Second)
			synctest.Wait()
			done, allowed := s.store.ScrubStats().Bytes, uint64(rate*time.Since(began).Seconds())
			require.LessOrEqual(t, done, allowed+pages.ScrubStep+4096)
			require.GreaterOrEqual(t, done, allowed)
		}
		stats := s.store.ScrubStats()
		require.Equal(t, stats.Bytes/all, stats.Passes)
		require.Positive(t, stats.Passes)
		require.Empty(t, s.failed)
		s.close(t)
	})
}

// TestScrubFindsDamage: damage that no reader meets is found within one pass, and reported once.
func TestScrubFindsDamage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScrubbed(t)
		names, err := s.fs.List("zone")
		require.NoError(t, err)
		for _, name := range names {
			if strings.HasSuffix(name, ".sst") {
				damageMiddle(t, s.fs, "zone/"+name)
			}
		}
		s.start(1 << 20)
		require.ErrorIs(t, <-s.failed, storage.ErrCorrupt)
		<-s.ended
		s.close(t)
	})
}

func damageMiddle(t *testing.T, fs vfs.FS, path string) {
	file, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	info, err := file.Stat()
	require.NoError(t, err)
	b := make([]byte, 1)
	_, err = file.ReadAt(b, info.Size()/3)
	require.NoError(t, err)
	b[0] ^= 1
	_, err = file.WriteAt(b, info.Size()/3)
	require.NoError(t, err)
	require.NoError(t, file.Close())
}

// alteredReader alters the records of some reads in a way that checksums do not detect.
type alteredReader struct {
	pages.Reader
	reads, alter int64
	left         atomic.Int64
}

func (r *alteredReader) Page(first, after []byte, bytes uint64, accept func([]byte) bool) error {
	r.reads++
	if r.reads < r.alter || r.left.Add(-1) < 0 {
		return r.Reader.Page(first, after, bytes, accept)
	}
	return r.Reader.Page(first, after, bytes, func(records []byte) bool {
		altered := append([]byte(nil), records...)
		altered[len(altered)-1] ^= 1
		return accept(altered)
	})
}

// TestScrubBesideBlocks: a page that is missing from a version that is no longer the newest is not
// damage, however often that happens: blocks may be faster than the scrubber.
func TestScrubBesideBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScrubbed(t)
		r := &alteredReader{Reader: s.zone, alter: 1}
		r.left.Store(100 * pages.ScrubTries)
		s.store.pages.Zone = r
		ctx, stop := context.WithCancel(t.Context())
		s.stop = stop
		newer := false // every other time
		go func() {
			defer close(s.ended)
			s.store.Scrub(ctx, func() *avlstar.Version {
				if newer = !newer; !newer {
					return nil
				}
				s.v.Retain()
				return s.v
			}, 100_000)
		}()
		bubble.Sleep(time.Hour)
		synctest.Wait()
		require.LessOrEqual(t, r.left.Load(), int64(0))
		require.Empty(t, s.failed)
		s.close(t)
	})
}

// TestScrubVerifiesPages: a page with valid checksums that differs from the stored one is damage if
// it stays so. A missing page may belong to a version that is no longer the newest.
func TestScrubVerifiesPages(t *testing.T) {
	rng := seeds.Rand(t)
	for _, wrong := range []int64{1, pages.ScrubTries - 1, pages.ScrubTries} {
		synctest.Test(t, func(t *testing.T) {
			s := newScrubbed(t)
			r := &alteredReader{Reader: s.zone, alter: 1 + rng.Int64N(50)}
			r.left.Store(wrong)
			s.store.pages.Zone = r
			s.start(100_000)
			bubble.Sleep(10 * time.Second)
			synctest.Wait()
			if wrong < pages.ScrubTries {
				require.Empty(t, s.failed)
				require.Greater(t, s.store.ScrubStats().Passes, uint64(2))
			} else {
				require.ErrorIs(t, <-s.failed, storage.ErrCorrupt)
			}
			s.close(t)
		})
	}
}
