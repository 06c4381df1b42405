package fastsync

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/scheduler"
)

// atHeight is a joiner that has half of a snapshot at height 100 after so long.
func atHeight(after time.Duration) *joiner {
	j := &joiner{o: Options{Interval: 10}, log: log.NewNopLogger(), look: firstLook, compared: map[int64]bool{},
		requests: map[scheduler.RequestID]*request{}, has: map[scheduler.PeerID]Status{}}
	j.round = &round{choice: &choice{height: 100}}
	j.count.progress = Progress{Bytes: 1000, BytesDone: 500}
	j.count.began = time.Now().Add(-after)
	return j
}

// A snapshot is left only for one that comes in half the time, and each look is twice as long after
// the one before.
func TestLooksAreRareAndChangesWorthwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := atHeight(100 * time.Second)
		require.Equal(t, 100*time.Second, j.left())
		of := j.round
		other := &choice{110, &avlstar.Manifest{Entries: make([]avlstar.Entry, 1)}}
		other.manifest.Entries[0].Root.Bytes = 1000
		for i, rate := range []float64{0, 1, 1000 / 150., 1000 / 51.} {
			looked{j.round, other, rate}.handle(j) // begin would panic: nothing is there for it
			require.Same(t, of, j.round)
			require.Equal(t, firstLook<<(i+1), j.look)
			require.True(t, j.compared[110])
		}
		require.Panics(t, func() { looked{j.round, other, 1000 / 49.}.handle(j) })
		looked{j.round, nil, 0}.handle(j)
		require.Equal(t, firstLook<<6, j.look, "a look that finds nothing is a look")
		j.requests[1] = &request{told: 500}
		require.Equal(t, 50*time.Second, j.left(), "what has arrived of chunks counts")
		j.count.progress.BytesDone = 0
		j.requests = nil
		require.Greater(t, j.left(), 24*time.Hour)
	})
}

// Each snapshot that peers claim is sampled once, but none that is much older; then it begins anew.
func TestLooksCompareEachOnce(t *testing.T) {
	j := atHeight(time.Second)
	require.False(t, j.unlooked())
	j.has["a"] = Status{Snapshots: []int64{50, 100}}
	require.False(t, j.unlooked(), "the present one, and one that is too old")
	j.has["b"] = Status{Snapshots: []int64{60}, Parts: []statesync.Part{{Height: 110}}}
	require.True(t, j.unlooked())
	j.compared[60] = true
	require.True(t, j.unlooked())
	j.compared[110] = true
	require.True(t, j.unlooked())
	require.Empty(t, j.compared)
}
