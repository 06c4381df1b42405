package blocks

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/storage/sgc"
)

// TestFillBesideWrite: a value read before or during a write is not cached, in any interleaving of
// reader and writer.
func TestFillBesideWrite(t *testing.T) {
	z := openZone(t, vfs.NewMem(), Options{})
	key, old := []byte("key"), []byte("old")
	begin := func(c *coherentCache) (end func()) {
		b := z.db.NewBatch()
		defer b.Close()
		require.NoError(t, b.Delete([]byte("before"), nil))
		require.NoError(t, b.Set(key, []byte("new"), nil))
		end, err := c.beginWrite(b)
		require.NoError(t, err)
		return end
	}
	for name, run := range map[string]func(c *coherentCache){
		"read, write, fill": func(c *coherentCache) {
			ticket := c.beginRead(key)
			begin(c)()
			c.fill(ticket, key, old)
		},
		"read, begin, fill, end": func(c *coherentCache) {
			ticket := c.beginRead(key)
			end := begin(c)
			c.fill(ticket, key, old)
			end()
		},
		"begin, read, fill, end": func(c *coherentCache) {
			end := begin(c)
			c.fill(c.beginRead(key), key, old)
			end()
		},
		"begin, read, end, fill": func(c *coherentCache) {
			end := begin(c)
			ticket := c.beginRead(key)
			end()
			c.fill(ticket, key, old)
		},
		"two writers, read between their ends": func(c *coherentCache) {
			end1, end2 := begin(c), begin(c)
			end1()
			ticket := c.beginRead(key)
			c.fill(ticket, key, old)
			end2()
			c.fill(ticket, key, old)
		},
		"fill, write": func(c *coherentCache) {
			c.fill(c.beginRead(key), key, old)
			_, hit := c.get(key)
			require.True(t, hit)
			begin(c)()
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCoherentCache(sgc.New(1 << 20))
			run(c)
			_, hit := c.get(key)
			require.False(t, hit)
			c.fill(c.beginRead(key), key, old)
			_, hit = c.get(key)
			require.True(t, hit)
		})
	}
}

// TestLargeValues: a large value is cached on its second read.
func TestLargeValues(t *testing.T) {
	cache := sgc.New(16 << 20)
	db := openZone(t, vfs.NewMem(), Options{Cache: cache}).DB("blockstore")
	hits := func() uint64 { return cache.Stats().Zones[sgc.Blocks].Hits }
	for _, size := range []int{100, largeValue - 1, largeValue, 64 << 10, 1 << 20} {
		key, value := fmt.Appendf(nil, "part %d", size), bytes.Repeat([]byte("x"), size)
		require.NoError(t, db.Set(key, value))
		for i := range 4 {
			before := hits()
			got, err := db.Get(key)
			require.NoError(t, err)
			require.Equal(t, value, got)
			kept := i > 0
			if size >= largeValue {
				kept = i > 1
			}
			require.Equal(t, kept, hits() > before, "size %d, read %d", size, i+1)
		}
	}
}

// TestReadsNeverGoBack: every read returns a value at least as new as those of all previous reads
// and writes: no old value reappears.
func TestReadsNeverGoBack(t *testing.T) {
	const keys, versions = 8, 300
	for name, o := range map[string]Options{
		"cached": {Cache: sgc.New(1 << 20)}, "thrashing": {Cache: sgc.New(800)}, "uncached": {},
	} {
		t.Run(name, func(t *testing.T) {
			o.MemTableBytes = smallMemTable
			db := openZone(t, vfs.NewMem(), o).DB("test")
			var seen [keys]atomic.Uint64 // the newest version with which some call has returned
			raise := func(k int, version uint64) {
				for old := seen[k].Load(); version > old && !seen[k].CompareAndSwap(old, version); old = seen[k].Load() {
				}
			}
			var writers, readers sync.WaitGroup
			var done atomic.Bool
			for k := range keys {
				writers.Go(func() {
					for version := uint64(1); version <= versions; version++ {
						value := binary.BigEndian.AppendUint64(nil, version)
						if version%3 == 0 {
							b := db.NewBatch()
							_ = b.Set([]byte{byte(k), 'x'}, value)
							_ = b.Delete([]byte{byte(k)})
							_ = b.Set([]byte{byte(k)}, value)
							if err := b.Write(); err != nil {
								t.Error(err)
							}
						} else if err := db.Set([]byte{byte(k)}, value); err != nil {
							t.Error(err)
						}
						raise(k, version)
					}
				})
			}
			for range 4 {
				readers.Go(func() {
					for k := 0; !done.Load(); k = (k + 1) % keys {
						atLeast := seen[k].Load()
						value, err := db.Get([]byte{byte(k)})
						if err != nil {
							t.Error(err)
							return
						}
						if value == nil {
							value = make([]byte, 8)
						}
						version := binary.BigEndian.Uint64(value)
						if version < atLeast {
							t.Errorf("key %d: read version %d after %d", k, version, atLeast)
							return
						}
						raise(k, version)
					}
				})
			}
			writers.Wait()
			done.Store(true)
			readers.Wait()
		})
	}
}

func BenchmarkGet(b *testing.B) {
	for name, o := range map[string]Options{"cached": {Cache: sgc.New(64 << 20)}, "uncached": {}} {
		b.Run(name, func(b *testing.B) {
			db := openZone(b, vfs.NewMem(), o).DB("test")
			for i := range 10_000 {
				require.NoError(b, db.Set(fmt.Appendf(nil, "%05d", i), make([]byte, 1000)))
			}
			require.NoError(b, db.Compact(nil, nil))
			key := []byte("00000")
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				key[2], key[3], key[4] = byte('0'+i/100%10), byte('0'+i/10%10), byte('0'+i%10)
				if value, err := db.Get(key); err != nil || len(value) != 1000 {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestOpenForgetsAnotherFolder: a cache may outlive its folder if a node that catches up moves its
// blocks aside.
func TestOpenForgetsAnotherFolder(t *testing.T) {
	cache, dir := sgc.New(1<<20), t.TempDir()
	for _, folder := range []string{"one", "two"} {
		zone, err := Open(filepath.Join(dir, folder), Options{Cache: cache})
		require.NoError(t, err)
		db := zone.DB("blockstore")
		value, err := db.Get([]byte("key"))
		require.NoError(t, err)
		require.Nil(t, value)
		require.NoError(t, db.SetSync([]byte("key"), []byte(folder)))
		value, err = db.Get([]byte("key"))
		require.NoError(t, err)
		require.Equal(t, folder, string(value))
		require.NoError(t, zone.Close())
	}
}
