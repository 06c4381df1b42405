package restore

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/fetch"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/statesync/scheduler"
	"github.com/starling-kv/starling/statesync/snapshot"
	"github.com/starling-kv/starling/statesync/view"
)

// atHeight returns a joiner that has half of a snapshot at height 100 after the given time.
func atHeight(after time.Duration) *joiner {
	j := &joiner{o: Options{Interval: 10}, log: log.NewNopLogger(), look: firstLook, compared: map[int64]bool{},
		has: map[scheduler.PeerID]protocol.Status{}}
	j.loop = fetch.New(context.Background(), 0, nil, j)
	j.round = &round{Choice: &snapshot.Choice{Height: 100}}
	j.count.progress = view.Progress{Bytes: 1000, BytesDone: 500}
	j.count.began = time.Now().Add(-after)
	return j
}

// A snapshot is abandoned only for one that takes half the time, and the time between looks
// doubles.
func TestLooksAreRareAndChangesWorthwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := atHeight(100 * time.Second)
		require.Equal(t, 100*time.Second, j.left())
		of := j.round
		other := &snapshot.Choice{Height: 110, Manifest: &avlstar.Manifest{Entries: make([]avlstar.Entry, 1)}}
		other.Manifest.Entries[0].Root.Bytes = 1000
		for i, rate := range []float64{0, 1, 1000 / 150., 1000 / 51.} {
			j.looked(j.round, other, rate) // begin would panic, since nothing is set up for it
			require.Same(t, of, j.round)
			require.Equal(t, firstLook<<(i+1), j.look)
			require.True(t, j.compared[110])
		}
		require.Panics(t, func() { j.looked(j.round, other, 1000/49.) })
		j.looked(j.round, nil, 0)
		require.Equal(t, firstLook<<6, j.look, "a look without a result counts")
		require.Equal(t, 50*time.Second, j.leftWith(500), "partly received chunks count")
		j.count.progress.BytesDone = 0
		require.Greater(t, j.left(), 24*time.Hour)
	})
}

// Each claimed snapshot is sampled once, except much older ones; then sampling starts over.
func TestLooksCompareEachOnce(t *testing.T) {
	j := atHeight(time.Second)
	require.False(t, j.unlooked())
	j.has["a"] = protocol.Status{Snapshots: []int64{50, 100}}
	require.False(t, j.unlooked(), "the present one, and one that is too old")
	j.has["b"] = protocol.Status{Snapshots: []int64{60}, Parts: []statesync.Part{{Height: 110}}}
	require.True(t, j.unlooked())
	j.compared[60] = true
	require.True(t, j.unlooked())
	j.compared[110] = true
	require.True(t, j.unlooked())
	require.Empty(t, j.compared)
}
