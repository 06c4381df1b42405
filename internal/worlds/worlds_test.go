package worlds

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type world struct{ seed uint64 }

func (w world) Run(trace func(string, ...any)) error {
	trace("%d", w.seed)
	if w.seed == 0 {
		return errors.New("no seed")
	}
	return nil
}

func TestRunAndSame(t *testing.T) {
	if *seed != 0 || *many != 0 {
		t.Fatal("flags are for other packages")
	}
	var ran []uint64
	of := func(seed uint64) world { return world{seed} }
	require.Equal(t, 3, Run(t, 3, of, func(w world) { ran = append(ran, w.seed) }))
	require.Equal(t, []uint64{1, 2, 3}, ran)
	Same(t, 3, of)
}

func TestTimeline(t *testing.T) {
	var l Timeline[string]
	_, ok := l.Next()
	require.False(t, ok)
	l.Add(2, "c")
	l.Add(1, "a")
	l.Add(2, "d")
	l.Add(1, "b")
	var order []string
	for at, ok := l.Next(); ok; at, ok = l.Next() {
		when, what := l.Take()
		require.Equal(t, at, when)
		order = append(order, what)
	}
	require.Equal(t, []string{"a", "b", "c", "d"}, order)
}

func TestPass(t *testing.T) {
	due := []time.Duration{5, 10, 11}
	var ticks []time.Duration
	next := func() (time.Duration, bool) {
		if len(due) == 0 {
			return 0, false
		}
		return due[0], true
	}
	tick := func(at time.Duration) { ticks, due = append(ticks, at), due[1:] }
	require.Equal(t, time.Duration(10), Pass(t, 5, 5, next, tick))
	require.Equal(t, []time.Duration{5, 10}, ticks)
	require.Equal(t, time.Duration(20), Pass(t, 10, 10, next, tick))
	require.Equal(t, []time.Duration{5, 10, 11}, ticks)
}
