package network

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestIntervals(t *testing.T) {
	zero := time.Unix(1000, 0)
	at := func(seconds ...float64) (times []time.Time) {
		for _, s := range seconds {
			times = append(times, zero.Add(time.Duration(s*float64(time.Second))))
		}
		return times
	}
	for _, c := range []struct {
		name   string
		times  []time.Time
		millis []float64
		halt   float64
	}{
		{"no blocks", nil, nil, 10},
		{"none in the window", at(-1, 11), nil, 10},
		{"a block before the window counts for its interval only", at(-3, 1, 2, 9.5, 12), []float64{4000, 1000, 7500}, 7.5},
		{"a halt at the end", at(-1, 0, 1), []float64{1000, 1000}, 9},
	} {
		millis, halt := Intervals(c.times, zero, zero.Add(10*time.Second))
		require.Equal(t, c.millis, millis, c.name)
		require.InDelta(t, c.halt, halt, 1e-9, c.name)
	}
}
