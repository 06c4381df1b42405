// Package worlds runs simulations in virtual time for tests of state machines: many random worlds,
// each reproducible from its seed.
package worlds

import (
	"container/heap"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	seed = flag.Uint64("seed", 0, "run only the world with this seed, and log its events")
	many = flag.Uint64("worlds", 0, "number of random worlds to run; 0: the test's default")
)

// World is a simulation. Run returns an error if something is wrong, and passes each event to
// trace.
type World interface {
	Run(trace func(format string, args ...any)) error
}

// Run creates and runs the worlds with seeds 1 to n, and passes those without an error to ended. It
// returns their number, or 0 if the -seed flag chose a single world.
func Run[W World](t *testing.T, n uint64, of func(seed uint64) W, ended func(W)) int {
	t.Helper()
	if *seed != 0 {
		require.NoError(t, of(*seed).Run(t.Logf))
		return 0
	}
	if *many != 0 {
		n = *many
	}
	for seed := uint64(1); seed <= n; seed++ {
		w := of(seed)
		if err := w.Run(func(string, ...any) {}); err != nil {
			t.Fatalf("seed %d: %v\nto repeat, in the package's folder: go test -run '^%s$' -v -seed %d", seed, err, t.Name(), seed)
		}
		ended(w)
	}
	return int(n)
}

// Same runs the worlds with seeds 1 to n twice and requires the same events: nothing depends on map
// order.
func Same[W World](t *testing.T, n uint64, of func(seed uint64) W) {
	t.Helper()
	for seed := uint64(1); seed <= n; seed++ {
		events := func() (all []string) {
			require.NoError(t, of(seed).Run(func(f string, args ...any) { all = append(all, fmt.Sprintf(f, args...)) }))
			return all
		}
		require.Equal(t, events(), events(), "seed %d", seed)
	}
}

// Pass lets virtual time pass from now by d, and returns the new time. next returns when a state
// machine needs a tick, if it does, and must not be in the past; tick is called at each such time.
func Pass(t testing.TB, now, d time.Duration, next func() (time.Duration, bool), tick func(at time.Duration)) time.Duration {
	t.Helper()
	until := now + d
	for at, ok := next(); ok && at <= until; at, ok = next() {
		require.GreaterOrEqual(t, at, now, "a tick in the past")
		now = at
		tick(now)
	}
	return until
}

// Timeline holds future events: the earliest first, and events at the same time in the order in
// which they were added. The zero value is empty.
type Timeline[E any] struct {
	queue queue[E]
	added int
}

// Add schedules e at the given time.
func (l *Timeline[E]) Add(at time.Duration, e E) {
	l.added++
	heap.Push(&l.queue, happening[E]{at, l.added, e})
}

// Next returns the time of the next event; ok is false if there is none.
func (l *Timeline[E]) Next() (at time.Duration, ok bool) {
	if len(l.queue) == 0 {
		return 0, false
	}
	return l.queue[0].at, true
}

// Take removes and returns the next event with its time. There must be one.
func (l *Timeline[E]) Take() (time.Duration, E) {
	h := heap.Pop(&l.queue).(happening[E])
	return h.at, h.event
}

type happening[E any] struct {
	at    time.Duration
	order int
	event E
}

type queue[E any] []happening[E]

func (q queue[E]) Len() int { return len(q) }
func (q queue[E]) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].order < q[j].order
}
func (q queue[E]) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue[E]) Push(x any)   { *q = append(*q, x.(happening[E])) }
func (q *queue[E]) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}
