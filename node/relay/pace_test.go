package relay

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPace(t *testing.T) {
	var p pace
	now := time.Unix(1_700_000_000, 0)
	fill := func() (n int) {
		for {
			send, _ := p.may(now)
			if !send {
				return n
			}
			n++
		}
	}
	finish := func(n int, f func()) {
		for range n {
			p.ended()
			f()
		}
	}
	began := now
	late := func() { p.late(began, now) }
	for _, want := range []int{8, 4, 2, 1} { // messages in flight together count once
		n := fill()
		require.Equal(t, want, n)
		began, now = now, now.Add(lateAfter)
		finish(n, late)
	}
	for pause := leastPause; pause < 4*mostPause; pause *= 2 {
		send, later := p.may(now)
		require.False(t, send || later)
		now = now.Add(min(pause, mostPause) - 1)
		send, _ = p.may(now)
		require.False(t, send, pause)
		now = now.Add(1)
		require.Equal(t, 1, fill())
		began, now = now, now.Add(lateAfter)
		finish(1, late)
	}
	now = now.Add(mostPause)
	for want := 1; want < maxUnderWay; want++ {
		n := fill()
		require.Equal(t, want, n)
		finish(n, p.delivered)
	}
	require.Equal(t, maxUnderWay, fill())
	finish(maxUnderWay, p.delivered)
	began = now
	require.Equal(t, maxUnderWay, fill())
	now = now.Add(time.Millisecond)
	finish(maxUnderWay, func() { p.failed(began, now) })
	now = now.Add(leastPause)
	require.Equal(t, 1, fill())
}
