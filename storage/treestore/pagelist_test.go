package treestore

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/sgc"
)

// errorsOf is a logger that counts errors.
type errorsOf struct {
	log.Logger
	n *int
}

func (l errorsOf) Error(string, ...any) { *l.n++ }

// openPaged opens a paged store. refused counts the page lists that cannot be used.
func openPaged(t *testing.T, fs vfs.FS, refused *int) (*storage.Zone, *Store) {
	t.Helper()
	zone, err := storage.Open("zone", storage.Options{FS: fs, Generations: true, FlushBlocks: 3})
	require.NoError(t, err)
	return zone, New(Options{Zone: zone, ChainID: testChain, Cache: sgc.New(100_000), Logger: errorsOf{log.NewNopLogger(), refused}})
}

// chainOf is a tree that random blocks change.
type chainOf struct {
	rnd    *rand.Rand
	height int64
	v      *avlstar.Version
}

func (c *chainOf) commit(t *testing.T, store *Store, keys int) {
	t.Helper()
	seen := map[int]bool{}
	var changes []avlstar.Change
	for range c.rnd.IntN(1 + keys) {
		k := c.rnd.IntN(keys)
		if seen[k] {
			continue
		}
		seen[k] = true
		change := avlstar.Change{Key: fmt.Appendf(nil, "key-%05d", k)}
		if c.rnd.IntN(3) > 0 {
			change.Value = bytes.Repeat([]byte{byte(c.height)}, 1+c.rnd.IntN(200))
		}
		changes = append(changes, change)
	}
	next, err := c.v.Apply(changes)
	require.NoError(t, err)
	base := c.v
	if c.height++; c.height == 1 {
		base = nil
	}
	require.NoError(t, store.Commit(c.height, next, base, changes))
	c.v.Release()
	c.v = next
}

// load replaces the tree by the one on disk, which must be the same.
func (c *chainOf) load(t *testing.T, store *Store) {
	t.Helper()
	height, v, err := store.Load()
	require.NoError(t, err)
	require.Equal(t, c.height, height)
	require.Equal(t, c.v.Commitment(), v.Commitment())
	require.Equal(t, c.v.Len(), v.Len())
	c.v.Release()
	c.v = v
}

// TestLoadFromPageList: a paged store loads what it has committed from its page list, after random
// blocks, also if the first blocks were committed without one. If other blocks were committed
// without it meanwhile, the store reads the leaves, and writes a new page list.
func TestLoadFromPageList(t *testing.T) {
	rnd := seeds.Rand(t)
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	for range rounds {
		fs, refused := vfs.NewMem(), 0
		empty, err := avlstar.Empty(1 + rnd.Uint64N(1<<14))
		require.NoError(t, err)
		c := &chainOf{rnd: rnd, v: empty}
		zone, store := openPaged(t, fs, &refused)
		for range 5 {
			for range 10 {
				c.commit(t, store, 2000)
				if rnd.IntN(10) == 0 {
					require.NoError(t, zone.Flush())
				}
			}
			had := c.v.HasPageList()
			require.NoError(t, zone.Close())
			zone, store = openPaged(t, fs, &refused)
			c.load(t, store)
			require.Equal(t, had, store.list.Known())

			if rnd.IntN(2) == 0 { // in memory
				require.NoError(t, zone.Close())
				zone = openZone(t, fs)
				store = New(Options{Zone: zone, ChainID: testChain})
				c.load(t, store)
				c.commit(t, store, 100)
				require.NoError(t, zone.Close())
				zone, store = openPaged(t, fs, &refused)
				c.load(t, store)
				require.False(t, store.list.Known())
			}
		}
		require.NoError(t, zone.Close())
		require.Zero(t, refused)
		c.v.Release()
	}
}

// spoiler is the owner of a block that writes records of the page list which are not those of its
// state: the header unless it is nil, and a page unless its key is nil.
type spoiler struct{ header, key, record []byte }

func (s spoiler) Take(_ func(key []byte, height uint8), page func(key, record []byte)) {
	if s.header != nil {
		page([]byte{0}, s.header)
	}
	if s.key != nil {
		page(s.key, s.record)
	}
}
func (spoiler) PinData() []byte { return nil }
func (spoiler) Done(bool)       {}

// TestWrongPageList: a store that finds a wrong page list loads the state from its leaves, and the
// next block replaces the page list.
func TestWrongPageList(t *testing.T) {
	header := append([]byte{1}, make([]byte, 16)...)
	header[8] = 3 // the height of the bad block
	stub := append([]byte{1, 2, 200, 1}, make([]byte, 32)...)
	for name, bad := range map[string]struct {
		spoiler
		refused int
	}{
		"an older height":       {spoiler{header: append([]byte{1}, make([]byte, 16)...)}, 0},
		"a newer version":       {spoiler{header: append([]byte{2}, header[1:]...)}, 0},
		"a short header":        {spoiler{header: header[:9]}, 0},
		"no header":             {spoiler{key: []byte{0}}, 0},
		"another page":          {spoiler{header, []byte("\x01key-00100"), stub}, 1},
		"a malformed page":      {spoiler{header, []byte("\x01key-00100"), []byte{1, 2}}, 1},
		"a page without bytes":  {spoiler{header, []byte("\x01key-00100"), []byte{1, 2, 128, 128, 128}}, 1},
		"a page of another key": {spoiler{header, []byte("\x02"), stub}, 1},
		"no first page":         {spoiler{header, []byte{1}, nil}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			fs, refused := vfs.NewMem(), 0
			zone, store := openPaged(t, fs, &refused)
			c := &chainOf{rnd: seeds.Rand(t), v: tree(t, 3000), height: 1}
			require.NoError(t, store.Commit(1, c.v, nil, changesOf(t, c.v)))
			c.v.Retain() // tree releases it, too
			c.commit(t, store, 2000)
			meta, err := store.meta(3, c.v)
			require.NoError(t, err)
			require.NoError(t, zone.Write(storage.Block{Meta: meta, Owner: bad.spoiler}))
			c.height = 3
			require.NoError(t, zone.Close())

			zone, store = openPaged(t, fs, &refused)
			c.load(t, store)
			require.False(t, store.list.Known())
			require.Equal(t, bad.refused, refused)
			c.commit(t, store, 10)
			require.NoError(t, zone.Close())
			zone, store = openPaged(t, fs, &refused)
			c.load(t, store)
			require.True(t, store.list.Known())
			require.Equal(t, bad.refused, refused)
			require.NoError(t, zone.Close())
			c.v.Release()
		})
	}
}
