package serve

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestGate checks that a reader waits for the block in progress only, and not longer than
// maxGiveWay.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		took := func() time.Duration {
			from := time.Now()
			g.giveWay()
			return time.Since(from)
		}
		require.Zero(t, took(), "no block in progress")
		open := g.close()
		time.AfterFunc(maxGiveWay/2, open)
		require.Equal(t, maxGiveWay/2, took())
		require.Zero(t, took(), "the block is finished")

		open = g.close()
		require.Equal(t, maxGiveWay, took(), "a long block")
		require.Zero(t, took(), "free time after the wait")
		<-time.After(maxGiveWay/4 - 1)
		require.Zero(t, took())
		<-time.After(1)
		require.Equal(t, maxGiveWay, took(), "waits again after the free time")
		open()

		first, second := g.close(), g.close()
		first()
		time.AfterFunc(1, second)
		<-time.After(maxGiveWay)
		require.Zero(t, took(), "two overlapping calls leave the gate open")
	})
}

// TestGateOfShortCalls checks that readers progress during calls shorter than maxGiveWay that
// follow each other without a pause.
func TestGateOfShortCalls(t *testing.T) {
	for _, call := range []time.Duration{10 * time.Millisecond, 90 * time.Millisecond, 400 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			const all, look = 20 * time.Second, 32 * time.Microsecond
			g, end := newGate(), time.Now().Add(all)
			go func() {
				for time.Now().Before(end) {
					open := g.close()
					<-time.After(call)
					open()
					<-time.After(100 * time.Microsecond)
				}
			}()
			var read time.Duration
			for time.Now().Before(end) {
				g.giveWay()
				<-time.After(look)
				read += look
			}
			require.Greater(t, read, all/10, "calls of %v", call)
			<-time.After(call + time.Second)
		})
	}
}
