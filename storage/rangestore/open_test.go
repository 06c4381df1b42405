package rangestore

import (
	"fmt"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
)

// An open range with a small state takes less memory than the sum of a node's budgets has for it.
func TestOpenRanges(t *testing.T) {
	m, v, dir := NewMemory(1<<20), tree(t, 100), t.TempDir()
	const ranges = 20
	before := heapBytes()
	var versions []*avlstar.Partial
	for i := range ranges {
		s := open(t, vfs.Default, filepath.Join(dir, fmt.Sprint(i)), avlstar.KeyRange{}, m)
		defer func() { require.NoError(t, s.Close()) }()
		create(t, s, 1, v)
		require.NoError(t, s.Flush(t.Context()))
		_, p := load(t, s)
		versions = append(versions, p)
	}
	each := (heapBytes() - before) / ranges
	t.Logf("%d bytes each", each)
	require.Less(t, each, int64(OpenBytes))
	for _, p := range versions {
		p.Release()
	}
}

func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
