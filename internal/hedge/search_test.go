package hedge

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/bubble"
)

// fakePeer answers after a delay and records whether its question was cancelled.
type fakePeer struct {
	name     string
	after    time.Duration
	answer   string
	err      error
	canceled bool
}

// manifests is a policy for large answers.
var manifests = Policy{Pace: ByRate, Start: 1, Most: 3, After: 300 * time.Millisecond, Rate: 1000, Turn: time.Second}

var errUseless = errors.New("useless")

// searching returns a Search among peers, and the WaitGroup of its goroutines.
func searching(policy Policy, peers ...*fakePeer) (*Search[*fakePeer, string], *sync.WaitGroup) {
	wg := new(sync.WaitGroup)
	return &Search[*fakePeer, string]{
		Policy: policy,
		Go:     wg.Go,
		More:   func() ([]*fakePeer, <-chan struct{}) { return peers, nil },
		Ask: func(ctx context.Context, p *fakePeer) (string, error) {
			select {
			case <-bubble.After(p.after):
				return p.answer, p.err
			case <-ctx.Done():
				p.canceled = true
				return "", ctx.Err()
			}
		},
	}, wg
}

func TestSearchTakesTheFirstGoodAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peers := []*fakePeer{
			{name: "silent", after: time.Hour}, {name: "fails", after: 100 * time.Millisecond, err: errUseless},
			{name: "slow", after: time.Minute, answer: "late"}, {name: "good", after: 50 * time.Millisecond, answer: "right"},
			{name: "never asked", answer: "?"},
		}
		s, wg := searching(manifests, peers...)
		var got, events []string
		s.Received = func(*fakePeer) int64 { return 0 }
		s.Failed = func(p *fakePeer, err error) bool {
			require.ErrorIs(t, err, errUseless)
			events = append(events, p.name)
			return false
		}
		s.Proved = func(p *fakePeer, answer string) { got = append(got, answer) }
		s.Settled = func() { events = append(events, "settled") }
		s.Unheard = func(p *fakePeer, since time.Duration) { events = append(events, p.name+" "+since.String()) }
		began := time.Now()
		require.NoError(t, s.Run(t.Context()))
		wg.Wait()
		require.Equal(t, []string{"right"}, got)
		// silent at 0, fails at 300, slow at 400 and good at 700 ms
		require.Equal(t, 750*time.Millisecond, time.Since(began))
		require.Equal(t, []string{"fails", "settled", "silent 750ms", "slow 350ms"}, events)
		require.True(t, peers[0].canceled && peers[2].canceled)
	})
}

func TestSearchWaitsWhileEnoughComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		large, other := &fakePeer{after: 2 * time.Second, answer: "large"}, &fakePeer{answer: "other"}
		s, wg := searching(manifests, large, other)
		began := time.Now()
		s.Received = func(*fakePeer) int64 { return time.Since(began).Milliseconds() }
		var got string
		s.Proved = func(_ *fakePeer, answer string) { got = answer }
		require.NoError(t, s.Run(t.Context()))
		wg.Wait()
		require.Equal(t, "large", got)
	})
}

// Forty peers send a byte at a time, and the last one has the whole answer: it is asked within
// seconds.
func TestSearchAmongThoseThatSendAByteAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var peers []*fakePeer
		for range 40 {
			peers = append(peers, &fakePeer{name: "drips", after: 3 * time.Hour, answer: "after hours"})
		}
		peers = append(peers, &fakePeer{name: "good", after: 100 * time.Millisecond, answer: "right"})
		s, wg := searching(manifests, peers...)
		began := time.Now()
		s.Received = func(*fakePeer) int64 { return int64(4 * time.Since(began).Seconds()) }
		var got string
		s.Proved = func(_ *fakePeer, answer string) { got = answer }
		require.NoError(t, s.Run(t.Context()))
		wg.Wait()
		require.Equal(t, "right", got)
		require.Less(t, time.Since(began), 30*time.Second)
	})
}

// A parked question is asked again, and a late answer to the first question is not taken for an
// answer to the second.
func TestSearchAsksThoseAgainThatWereParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &fakePeer{name: "slow", after: 3 * time.Second, answer: "right"}
		peers := []*fakePeer{{name: "silent", after: time.Hour}, slow, {name: "silent", after: time.Hour}, {name: "silent", after: time.Hour}}
		s, wg := searching(manifests, peers...)
		s.Received = func(*fakePeer) int64 { return 0 }
		var asked atomic.Int64
		ask := s.Ask
		s.Ask = func(ctx context.Context, p *fakePeer) (string, error) {
			if p == slow {
				asked.Add(1)
			}
			return ask(ctx, p)
		}
		s.Failed = func(p *fakePeer, err error) bool {
			t.Error("failed", p.name, err)
			return false
		}
		var got string
		s.Proved = func(_ *fakePeer, answer string) { got = answer }
		began := time.Now()
		require.NoError(t, s.Run(t.Context()))
		wg.Wait()
		require.Equal(t, "right", got)
		require.Greater(t, asked.Load(), int64(1))
		require.Less(t, time.Since(began), 30*time.Second)
	})
}

func TestSearchEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := &fakePeer{after: time.Hour}
		s, wg := searching(Policy{Start: 4, Most: 4, After: time.Second}, silent)
		s.Unheard = func(*fakePeer, time.Duration) { t.Error("called, although the search did not end by itself") }
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		require.ErrorIs(t, s.Run(ctx), context.DeadlineExceeded)
		wg.Wait()
		require.True(t, silent.canceled)
		s, _ = searching(Policy{Start: 4, Most: 4, After: time.Second})
		require.NoError(t, s.Run(t.Context()), "no candidates")
	})
}

func TestSearchIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := &fakePeer{after: time.Hour}
		s, wg := searching(Policy{Start: 4, Most: 4, After: time.Second}, silent, &fakePeer{after: time.Second, err: errUseless})
		s.Failed = func(*fakePeer, error) bool { return true }
		s.Settled = func() { t.Error("settled") }
		require.NoError(t, s.Run(t.Context()))
		wg.Wait()
		require.True(t, silent.canceled)
	})
}

// TestSearchProvesAndCompares covers parallel proofs of different answers, a candidate that joins
// later, waiting for the other candidates, and lingering.
func TestSearchProvesAndCompares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		liar := &fakePeer{name: "liar", answer: "lie"}
		good, silent := &fakePeer{name: "good", after: time.Second, answer: "right"}, &fakePeer{name: "silent", after: time.Hour}
		s, wg := searching(Policy{Start: 4, Most: 8, After: 300 * time.Millisecond, Compare: 5 * time.Second, Linger: true}, liar, silent)
		waves := [][]*fakePeer{{liar, silent}, {good}, nil}
		joined := make(chan struct{})
		time.AfterFunc(time.Second, func() { close(joined) })
		again := []<-chan struct{}{joined, nil}
		s.More = func() (more []*fakePeer, next <-chan struct{}) {
			more, next = waves[0], again[0]
			waves, again = waves[1:], again[1:]
			return more, next
		}
		s.Key = func(answer string) string { return answer }
		s.Prove = func(ctx context.Context, p *fakePeer, answer string) error {
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return ctx.Err()
			}
			if answer != "right" {
				return errUseless
			}
			return nil
		}
		var refuted, overdue []string
		s.Refuted = func(p *fakePeer, _ error) bool {
			refuted = append(refuted, p.name)
			return false
		}
		s.Overdue = func(asked, proving []*fakePeer) {
			for _, p := range slices.Concat(asked, proving) {
				overdue = append(overdue, p.name)
			}
		}
		var settledAfter time.Duration
		began := time.Now()
		s.Settled = func() { settledAfter = time.Since(began) }
		s.Standing = func(p *fakePeer) (prompt, trusted bool) {
			return p != silent || time.Since(began) < 4*time.Second, true
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, s.Run(ctx), context.DeadlineExceeded, "it lingers because of the silent one")
		wg.Wait()
		require.Equal(t, []string{"liar"}, refuted)
		require.Equal(t, []string{"silent"}, overdue)
		// Proved at 3 s and compared for 5 s. No event in between makes the search check the
		// standing of the silent candidate.
		require.Equal(t, 8*time.Second, settledAfter)
	})
}

// A late answer makes its peer not prompt when it arrives. It is examined all the same until
// Compare has passed: a second, different answer may be the one that counts.
func TestSearchExaminesALateAnswer(t *testing.T) {
	for name, linger := range map[string]bool{"ends": false, "lingers": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first := &fakePeer{name: "first", answer: "right"}
				late := &fakePeer{name: "late", after: 1200 * time.Millisecond, answer: "other"}
				s, wg := searching(Policy{Start: 4, Most: 8, After: 300 * time.Millisecond, Compare: time.Second, Linger: linger}, first, late)
				s.Key = func(answer string) string { return answer }
				s.Prove = func(ctx context.Context, p *fakePeer, _ string) error {
					took := 900 * time.Millisecond
					if p == late {
						took = 200 * time.Millisecond
					}
					select {
					case <-time.After(took):
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				began := time.Now()
				s.Standing = func(p *fakePeer) (prompt, trusted bool) {
					return p != late || time.Since(began) < time.Second, true
				}
				var proved []string
				s.Proved = func(p *fakePeer, _ string) { proved = append(proved, p.name) }
				var settledAfter time.Duration
				s.Settled = func() { settledAfter = time.Since(began) }
				require.NoError(t, s.Run(t.Context()))
				wg.Wait()
				require.Equal(t, []string{"first", "late"}, proved)
				require.Equal(t, 1400*time.Millisecond, settledAfter)
			})
		})
	}
}

func TestSearchOfWhatIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, wg := searching(Policy{Start: 4, Most: 8, After: time.Second, Compare: 5 * time.Second, Linger: true},
			&fakePeer{answer: "right"}, &fakePeer{after: 2 * time.Second, answer: "lie"})
		s.Known = "right"
		s.Key = func(answer string) string { return answer }
		s.Prove = func(context.Context, *fakePeer, string) error { return errUseless }
		s.Proved = func(*fakePeer, string) { t.Error("proved") }
		settled := 0
		s.Settled = func() { settled++ }
		began := time.Now()
		require.NoError(t, s.Run(t.Context()))
		wg.Wait()
		require.Equal(t, 1, settled)
		require.Equal(t, 2*time.Second, time.Since(began))
	})
}

// Without Prove, an answer ends the search before anybody else is asked.
func TestSearchWithoutProofsAsksNobodyElse(t *testing.T) {
	for _, pace := range []Pace{EachSlow, ByRate, Doubling} {
		synctest.Test(t, func(t *testing.T) {
			first, other := &fakePeer{name: "first", after: time.Second, answer: "right"}, &fakePeer{name: "other", answer: "right"}
			policy := Policy{Pace: pace, Start: 1, Most: 2, After: 2 * time.Second, Rate: 1, Turn: time.Second}
			s, wg := searching(policy, first, other)
			ask, asked, proved := s.Ask, 0, 0
			s.Ask = func(ctx context.Context, p *fakePeer) (string, error) {
				asked++
				return ask(ctx, p)
			}
			s.Received = func(*fakePeer) int64 { return 0 }
			s.Proved = func(*fakePeer, string) { proved++ }
			s.Unheard = func(*fakePeer, time.Duration) { t.Error("unheard") }
			require.NoError(t, s.Run(t.Context()))
			wg.Wait()
			require.Equal(t, 1, asked)
			require.Equal(t, 1, proved)
		})
	}
}
