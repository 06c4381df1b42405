package storagebench

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/bench/gethtrie"
)

// replayed replays the requests of tiny into a contestant, closes its files, and opens them for
// reading.
func replayed(t *testing.T, name, traces string, s Spec, m *model, mode cacheMode) layout {
	t.Helper()
	dir := t.TempDir()
	l, err := openLayout(name, dir, s, 1<<20, nil)
	require.NoError(t, err)
	file := map[string]string{nameGethRow: fileRow, nameGethColumn: fileColumn, nameGethPath: filePath}[name]
	if file == "" {
		file = fileHash
	}
	state, err := openTrace(filepath.Join(traces, file))
	require.NoError(t, err)
	blocks, err := openTrace(filepath.Join(traces, fileBlocks))
	require.NoError(t, err)
	for step := 1; ; step++ {
		b, err := state.next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		var data []batch
		if step > s.LoadSteps {
			data, err = blocks.next()
			require.NoError(t, err)
		}
		require.NoError(t, l.replay(int64(step), data, b[0]))
	}
	require.NoError(t, l.drain())
	require.NoError(t, l.close())
	l, err = openLayout(name, dir, s, 1<<20, &reading{model: m, mode: mode})
	require.NoError(t, err)
	return l
}

// Every account of the chain has its last value in geth's tries on disk, with and without caches,
// and deleted accounts are absent. A transaction is found, too. Files with another root do not
// open.
func TestGethHoldsTheChain(t *testing.T) {
	s := tiny
	s.Geth = true
	traces, m := makeTiny(t, s)
	d, err := readModel(traces)
	require.NoError(t, err)
	require.Equal(t, m.model.GethRoot, d.GethRoot)
	require.Positive(t, d.HashOps)
	require.Greater(t, d.PathOps, d.HashOps, "the flat state, and deletes")
	require.Greater(t, d.ColumnBytes, d.HashBytes+d.HashOps, "a path has several nibbles")
	present := map[uint32]bool{}
	for _, id := range d.Present {
		present[id] = true
	}
	for _, c := range []struct {
		name string
		mode cacheMode
	}{
		{nameGethHash, halves}, {nameGethLevel, halves}, {nameGethRow, halves}, {nameGethColumn, halves}, {nameGethPath, halves}, {nameGethPath, cacheMode{Flat: true}},
		{nameGethHash, cacheMode{Limited: true}}, {nameGethColumn, cacheMode{Limited: true}}, {nameGethPath, cacheMode{Limited: true}},
	} {
		l := replayed(t, c.name, traces, s, d, c.mode)
		for id := range uint32(len(d.Last)) {
			require.NoError(t, l.account(s.key(id), func(value []byte) error {
				if present[id] {
					require.Equal(t, s.appendValue(nil, id, d.Last[id]), value, "%s, account %d", c.name, id)
				} else {
					require.Nil(t, value, "%s, deleted account %d", c.name, id)
				}
				return nil
			}))
		}
		require.NoError(t, l.tx(s.Blocks, 3, func(record, part []byte) error {
			_, at := txPlace(3)
			require.True(t, isTx(s, s.Blocks, 3, record, part[at:]))
			return nil
		}))
		require.LessOrEqual(t, l.plan().sum(), int64(1<<20))
		if c.mode.Limited {
			require.Zero(t, l.hits().rate())
			require.Zero(t, l.plan().Nodes+l.plan().BlockCache)
		}
		require.NoError(t, l.close())
	}
	other := *d
	other.GethRoot = gethtrie.HashOf([]byte("another root")).Bytes()
	for _, name := range []string{nameGethHash, nameGethRow, nameGethColumn, nameGethPath} {
		dir := t.TempDir()
		l, err := openLayout(name, dir, s, 1<<20, nil)
		require.NoError(t, err)
		require.NoError(t, l.close())
		_, err = openLayout(name, dir, s, 1<<20, &reading{model: &other})
		require.ErrorIs(t, err, errNode)
	}
	require.NoError(t, os.RemoveAll(traces))
}

// The path scheme's buffer merges the changes of blocks: less is written than requested.
func TestGethPathMerges(t *testing.T) {
	l := &gethLayout{Spec: tiny, path: true, memory: memoryPlan{Memtables: 1 << 20}, buffer: map[string]op{}}
	b := batch{db: dbApp}
	b.set([]byte("a"), []byte("1"))
	require.NoError(t, l.replay(1, nil, b))
	used := l.used
	require.NoError(t, l.replay(2, nil, b))
	require.Equal(t, used, l.used)
	require.Len(t, l.buffer, 1)
}

func TestLRU(t *testing.T) {
	c := newLRU[int, string](10)
	c.put(1, "a", 4)
	c.put(2, "b", 4)
	_, ok := c.get(1)
	require.True(t, ok)
	c.put(3, "c", 4)
	_, ok = c.get(2)
	require.False(t, ok, "the least recently used entry was removed")
	v, _ := c.get(1)
	require.Equal(t, "a", v)
	c.put(4, "d", 11)
	_, ok = c.get(4)
	require.False(t, ok, "larger than the cache")
	require.Equal(t, int64(8), c.used)
}
