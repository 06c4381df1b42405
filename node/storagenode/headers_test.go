package storagenode

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// addUpTo adds the headers of heights (from, to], with the app hashes of the heights before.
func addUpTo(h *headers, from, to int64) {
	for height := from + 1; height <= to; height++ {
		h.add(proved{height: height})
	}
}

// The next header is the first missing one, also for a range that was taken over at a lower height
// than the others. Headers are limited ahead of the slowest range and below it.
func TestHeaders(t *testing.T) {
	var h headers
	h.init()
	next := func(lowest int64) int64 {
		height, ok := h.next(lowest)
		require.True(t, ok)
		return height
	}
	require.EqualValues(t, 6, next(5), "its app hash is that after block 5")
	addUpTo(&h, 5, 10)
	require.EqualValues(t, 11, next(5))
	require.EqualValues(t, 4, next(3), "a range begins lower")
	addUpTo(&h, 3, 5)
	require.EqualValues(t, 11, next(3))
	require.EqualValues(t, 10, h.newestProved().height)

	addUpTo(&h, 10, 3+aheadHeaders)
	require.EqualValues(t, 3+aheadHeaders+1, next(3))
	addUpTo(&h, 3+aheadHeaders, 3+aheadHeaders+1)
	_, ok := h.next(3)
	require.False(t, ok, "enough for now")

	_, has := h.AppHash(3)
	require.True(t, has)
	next(3 + keepHeaders)
	_, has = h.AppHash(3)
	require.True(t, has)
	next(3 + keepHeaders + 1)
	_, has = h.AppHash(3)
	require.False(t, has)
}
