package events

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app/event"
)

// fill creates a log on the real disk with blocks of 100 changes each.
func fill(b *testing.B, heights int64, o Options) *Log {
	b.Helper()
	l, err := Open(b.TempDir(), o)
	require.NoError(b, err)
	var keys []string
	for i := range 100 {
		keys = append(keys, fmt.Sprintf("some/longer/key/%04d", i))
	}
	for h := int64(1); h <= heights; h++ {
		require.NoError(b, l.Commit(put(h, keys...)))
		l.Committed(h)
	}
	require.NoError(b, l.Sync(heights))
	return l
}

// BenchmarkCatchUp reads 10,000 heights of 100 events each, as messages: all events, and the
// hundredth of them with one key.
func BenchmarkCatchUp(b *testing.B) {
	l := fill(b, 10_000, Options{})
	for name, keys := range map[string]event.Keys{
		"everything": {}, "one key": {Start: []byte("some/longer/key/0007"), End: []byte("some/longer/key/0007\x00")},
	} {
		b.Run(name, func(b *testing.B) {
			events := 0
			for b.Loop() {
				for r := (event.Request{From: event.Token{Height: 1}, Keys: keys}); r.From.Height <= 10_000; {
					a, err := l.Answer(b.Context(), r, 0)
					require.NoError(b, err)
					a, err = event.DecodeAnswer(a.Encode(), &r)
					require.NoError(b, err)
					events += len(a.Events)
					r.From = a.Next
				}
			}
			b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
			b.ReportMetric(float64(b.N)*1_000_000/b.Elapsed().Seconds(), "scanned/s")
		})
	}
	require.NoError(b, l.Close())
}

// BenchmarkHandOver measures what watchers add to a block of 1,000 changes: the time of Commit and
// Committed while 1,000 requests watch a key each, and ten watch everything.
func BenchmarkHandOver(b *testing.B) {
	for _, watchers := range []int{0, 1000} {
		b.Run(fmt.Sprint(watchers), func(b *testing.B) {
			l, err := Open(b.TempDir(), Options{})
			require.NoError(b, err)
			require.NoError(b, l.Begin(0))
			keys := make([]string, 1000)
			var wg sync.WaitGroup
			watch := func(k event.Keys) {
				for r := (event.Request{From: event.Token{Height: 1}, Keys: k, WaitMS: 60_000}); ; {
					a, err := l.Answer(b.Context(), r, time.Minute)
					if err != nil {
						return // the log is closed
					}
					r.From = a.Next
				}
			}
			for i := range keys {
				keys[i] = fmt.Sprintf("some/longer/key/%04d", i)
				if i < watchers {
					wg.Go(func() { watch(event.Keys{Start: []byte(keys[i]), End: []byte(keys[i] + "\x00")}) })
				}
			}
			for range watchers / 100 {
				wg.Go(func() { watch(event.Keys{}) })
			}
			var took []time.Duration
			for height := int64(1); b.Loop(); height++ {
				block := put(height, keys...)
				began := time.Now()
				require.NoError(b, l.Commit(block))
				l.Committed(height)
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
			require.NoError(b, l.Close())
			wg.Wait()
		})
	}
}
