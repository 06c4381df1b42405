package client

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	ctypes "github.com/cometbft/cometbft/rpc/core/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app/event"
	"github.com/starling-kv/starling/internal/sleep"
)

// text formats an event as a line.
func text(e Event) string {
	return fmt.Sprintf("%s %s=%s was %s", e.Kind, e.Key, e.Value, e.Previous)
}

func nextOf(t *testing.T, w *Watcher, want string) Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	e, err := w.Next(ctx)
	require.NoError(t, err)
	require.Equal(t, want, text(e))
	require.Len(t, e.TxHash, 32)
	return e
}

func TestWatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, err := newTrio(t).Watch(t.Context(), nil, WatchVerified())
		require.ErrorContains(t, err, "WithVerification")
		ctx, chain, _, c := connected(t)
		put := func(key, value string) {
			_, err := c.Put(ctx, []byte(key), []byte(value))
			require.NoError(t, err)
		}
		put("fruit/apple", "0")
		fruit, err := c.Watch(ctx, []byte("fruit/"))
		require.NoError(t, err)
		put("veg/carrot", "1")
		put("fruit/apple", "1")
		_, err = c.Delete(ctx, []byte("fruit/apple"))
		require.NoError(t, err)
		first := nextOf(t, fruit, "put fruit/apple=1 was ")
		second := nextOf(t, fruit, "delete fruit/apple= was ")
		require.Greater(t, second.Height, first.Height)
		require.False(t, second.Token().Before(first.Token()))

		// From a token, a height, and a range of keys, with previous values.
		again, err := c.Watch(ctx, []byte("fruit/"), WatchFrom(first.Token()), WatchPrevious())
		require.NoError(t, err)
		require.Equal(t, first.Token(), again.Token())
		nextOf(t, again, "delete fruit/apple= was 1")
		all, err := c.Watch(ctx, nil, WatchFromHeight(1))
		require.NoError(t, err)
		nextOf(t, all, "put fruit/apple=0 was ")
		nextOf(t, all, "put veg/carrot=1 was ")
		one, err := c.Watch(ctx, nil, WatchKey([]byte("veg/carrot")), WatchFromHeight(1))
		require.NoError(t, err)
		nextOf(t, one, "put veg/carrot=1 was ")
		none, err := c.Watch(ctx, nil, WatchRange([]byte("g"), []byte("v")), WatchFromHeight(1))
		require.NoError(t, err)
		short, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		_, err = none.Next(short)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, Token{Height: int64(len(chain.blocks))}, none.Token(), "the token is past the blocks without events")

		// Compacted: events read before are kept, and the error has the lowest height.
		chain.mu.Lock()
		chain.least = second.Height
		chain.mu.Unlock()
		_, err = c.Watch(ctx, nil, WatchFrom(first.Token()))
		var compacted *CompactedError
		require.ErrorAs(t, err, &compacted)
		require.Equal(t, CompactedError{first.Token(), second.Height}, *compacted)
	})
}

// TestWatchMoves: a watch moves to another node when its own is killed, silent, or has stopped
// following the chain. No event is lost or repeated.
func TestWatchMoves(t *testing.T) {
	for name, fail := range map[string]func(r *trio, n *fakeNode){
		"killed":  func(_ *trio, n *fakeNode) { n.change(func() { n.down = errDial }) },
		"stopped": func(_ *trio, n *fakeNode) { n.change(func() { n.stopped = make(chan struct{}) }) },
		"left behind": func(r *trio, n *fakeNode) {
			go func() { // it stays at its height
				for sleep.For(r.ctx, time.Second) == nil {
					n.change(func() { n.lag += 2 }) // each change makes two blocks
				}
			}()
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newTrio(t)
				ctx, cancel := context.WithCancel(r.ctx)
				r.ctx = ctx
				defer cancel()
				w, err := r.Watch(ctx, nil)
				require.NoError(t, err)
				first := w.at.RPC.(*fakeNode)
				go func() {
					for i := 0; sleep.For(ctx, time.Second) == nil; i++ {
						r.chain.mu.Lock()
						_ = r.chain.execute(fmt.Appendf(nil, "k=%d", i))
						r.chain.mu.Unlock()
					}
				}()
				for i := range 60 {
					if i == 5 {
						require.Same(t, first, w.at.RPC, "it stays at a healthy node")
						fail(r, first)
					}
					e, err := w.Next(ctx)
					require.NoError(t, err)
					require.Equal(t, fmt.Sprint(i), string(e.Value))
				}
				require.NotSame(t, first, w.at.RPC)
			})
		})
	}
}

// TestWatchCompacted: the events are compacted if all nodes report so, or if the only other node
// stays away.
func TestWatchCompacted(t *testing.T) {
	for name, back := range map[string]time.Duration{"it comes back": standstill / 2, "it stays away": time.Hour} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newTrio(t)
				w, err := r.Watch(r.ctx, nil)
				require.NoError(t, err)
				_, err = r.Put(r.ctx, []byte("k"), []byte("v"))
				require.NoError(t, err)
				away := r.nodes[2]
				away.change(func() {
					away.down, r.nodes[0].least, r.nodes[1].least = errDial, 1<<40, 1<<40
					time.AfterFunc(back, func() { away.change(func() { away.down = nil }) })
				})
				if back < standstill {
					nextOf(t, w, "put k=v was ")
					return
				}
				began := time.Now()
				_, err = w.Next(r.ctx)
				require.ErrorAs(t, err, new(*CompactedError))
				require.GreaterOrEqual(t, time.Since(began), standstill)
				require.Less(t, time.Since(began), 2*standstill)
				away.change(func() { away.down, away.least = nil, 1<<40 })
				began = time.Now()
				_, err = w.Next(r.ctx)
				require.ErrorAs(t, err, new(*CompactedError))
				require.Less(t, time.Since(began), time.Second)
			})
		})
	}
}

// TestWatchVerified: with verification, forged or changed events are not delivered: the watch moves
// to another node and continues there.
func TestWatchVerified(t *testing.T) {
	for name, change := range map[string]func(*event.Answer){
		"another value":  func(a *event.Answer) { a.Events[0].Value = []byte("false") },
		"deleted":        func(a *event.Answer) { a.Events[0].Value, a.Events[0].Kind = nil, event.Delete },
		"another key":    func(a *event.Answer) { a.Events[0].Key = []byte("l") },
		"not its height": func(a *event.Answer) { a.Events[0].Height-- },
		"no height yet": func(a *event.Answer) {
			a.Events[0].Height += 1000
			a.Next, a.Head = Token{Height: a.Next.Height + 1000}, a.Head+1000
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				chain := newFakeChain(t)
				r := newTrioOn(t, chain, WithVerification(Trust{Genesis: chain.genesis()}))
				w, err := r.Watch(r.ctx, nil, WatchFromHeight(1), WatchVerified())
				require.NoError(t, err)
				liar := w.at.RPC.(*fakeNode)
				liar.lies(lieOf(change))
				_, err = r.Put(r.ctx, []byte("k"), []byte("true"))
				require.NoError(t, err)
				e := nextOf(t, w, "put k=true was ")
				require.True(t, e.Proved)
				require.NotSame(t, liar, w.at.RPC)
			})
		})
	}
}

// TestWatchVerifiedLargeBlock: a key that changes twice in a block whose events exceed an answer is
// not a false event, and the reported rest of the block cannot excuse a false one.
func TestWatchVerifiedLargeBlock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		chain := newFakeChain(t)
		r := newTrioOn(t, chain, WithVerification(Trust{Genesis: chain.genesis()}))
		large := func(c string) []byte { return []byte(strings.Repeat(c, 40<<10)) }
		_, err := r.Put(r.ctx, []byte("k"), large("b"))
		require.NoError(t, err)
		chain.mu.Lock()
		last := &chain.events[len(chain.events)-1]
		first, other := *last, *last
		first.Value, other.Key, other.Index, last.Index = large("a"), []byte("kk"), 1, 2
		other.Value, other.Kind = nil, event.Delete
		chain.events = append(chain.events[:len(chain.events)-1], first, other, *last)
		chain.mu.Unlock()
		w, err := r.Watch(r.ctx, nil, WatchFromHeight(1), WatchVerified())
		require.NoError(t, err)
		e := nextOf(t, w, "put k="+string(large("a"))+" was ")
		require.False(t, e.Proved, "a later one of the block replaces it")
		require.True(t, nextOf(t, w, "delete kk= was ").Proved)
		require.True(t, nextOf(t, w, "put k="+string(large("b"))+" was ").Proved)

		liar := w.at.RPC.(*fakeNode)
		w, err = r.Watch(r.ctx, nil, WatchFromHeight(1), WatchVerified())
		require.NoError(t, err)
		require.Same(t, liar, w.at.RPC)
		liar.change(func() { liar.lie = lieOf(func(a *event.Answer) { a.Events[len(a.Events)-1].Value = large("c") }) })
		w, err = r.Watch(r.ctx, nil, WatchFromHeight(1), WatchVerified())
		require.NoError(t, err)
		require.NotSame(t, liar, w.at.RPC)
	})
}

// TestWatchTurnsBack: a false answer, that nothing happens up to a block that will never exist,
// does not silence a watch permanently; nor does an event of such a block.
func TestWatchTurnsBack(t *testing.T) {
	for name, invent := range map[string]bool{"nothing happens": false, "an event": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newTrio(t)
				w, err := r.Watch(r.ctx, nil)
				require.NoError(t, err)
				liar := w.at.RPC.(*fakeNode)
				liar.change(func() {
					lie := lieAbout(func(a *event.Answer) {
						if a.Next.Height < 1<<50 && invent {
							a.Events = []event.Event{{Height: 1 << 50, Tx: make([]byte, 32), Kind: event.Put, Key: []byte("x"), Value: []byte("false")}}
						} else {
							a.Events = nil
						}
						a.Next.Height = max(a.Next.Height, 1<<50) + 1
						a.Head = a.Next.Height
					})
					liar.lie = func(answer any) error {
						if status, is := answer.(*ctypes.ResultStatus); is {
							status.SyncInfo.LatestBlockHeight = 1 << 60
						}
						return lie(answer)
					}
				})
				ctx, cancel := context.WithCancel(r.ctx)
				defer cancel()
				go func() {
					for i := 0; sleep.For(ctx, time.Second) == nil; i++ {
						r.chain.mu.Lock()
						_ = r.chain.execute(fmt.Appendf(nil, "k=%d", i))
						r.chain.mu.Unlock()
					}
				}()
				if invent {
					nextOf(t, w, "put x=false was ")
				}
				for i := range 60 {
					nextOf(t, w, fmt.Sprintf("put k=%d was ", i))
				}
			})
		})
	}
}

// lieOf changes the answers with events.
func lieOf(change func(*event.Answer)) func(any) error {
	return lieAbout(func(a *event.Answer) {
		if len(a.Events) > 0 {
			change(a)
		}
	})
}

// lieAbout changes the answers about events.
func lieAbout(change func(*event.Answer)) func(any) error {
	return func(answer any) error {
		res, is := answer.(*ctypes.ResultABCIQuery)
		if !is {
			return nil
		}
		a, err := event.DecodeAnswer(res.Response.Value, &event.Request{})
		if err == nil && a.Head > 0 { // it is not an answer to another query
			change(&a)
			res.Response.Value = a.Encode()
		}
		return nil
	}
}

// TestCache: a cache contains only proved data, whatever events a node reports.
func TestCache(t *testing.T) {
	bubble(t, func(t *testing.T) {
		chain := newFakeChain(t)
		r := newTrioOn(t, chain, WithVerification(Trust{Genesis: chain.genesis()}))
		put := func(key, value string) {
			_, err := r.Put(r.ctx, []byte(key), []byte(value))
			require.NoError(t, err)
		}
		put("a/1", "x")
		_, err := newTrio(t).NewCache(r.ctx, nil, nil)
		require.ErrorContains(t, err, "WithVerification")
		k, err := r.NewCache(r.ctx, []byte("a/"), []byte("a0"))
		require.NoError(t, err)
		require.True(t, k.State().Verified)
		value, ok := k.Get([]byte("a/1"))
		require.True(t, ok)
		require.Equal(t, "x", string(value))
		put("b", "not in it")
		put("a/2", "y")
		require.NoError(t, k.Wait(r.ctx))
		require.Len(t, k.Entries(), 2)
		require.Equal(t, "a/2", string(k.Entries()[1].Key))
		_, ok = k.Get([]byte("b"))
		require.False(t, ok)

		// False events, or events at a height that does not exist, make it read again.
		chain.mu.Lock()
		chain.events = append(chain.events, event.Event{Height: int64(len(chain.blocks)) - 1, Index: 9, Tx: make([]byte, 32), Kind: event.Put, Key: []byte("a/3"), Value: []byte("false")})
		chain.mu.Unlock()
		require.NoError(t, k.Refresh(r.ctx))
		require.Len(t, k.Entries(), 2)

		// Missed changes are found by the next read.
		chain.mu.Lock()
		chain.least = 1 << 40
		chain.mu.Unlock()
		put("a/4", "z")
		short, cancel := context.WithTimeout(r.ctx, time.Minute)
		defer cancel()
		require.Error(t, k.Wait(short))
		require.Error(t, k.Wait(short), "again: there is no watcher any more")
		chain.mu.Lock()
		chain.least = 0
		chain.mu.Unlock()
		require.NoError(t, k.Refresh(r.ctx))
		require.Len(t, k.Entries(), 3)
	})
}

// TestCacheReadsAfterError: a change whose event arrived, but which could not be read then, is read
// by the next call.
func TestCacheReadsAfterError(t *testing.T) {
	bubble(t, func(t *testing.T) {
		chain := newFakeChain(t)
		r := newTrioOn(t, chain, WithVerification(Trust{Genesis: chain.genesis()}))
		k, err := r.NewCache(r.ctx, nil, nil)
		require.NoError(t, err)
		_, err = r.Put(r.ctx, []byte("k"), []byte("v"))
		require.NoError(t, err)
		without := func(lie func(any) error) {
			for _, n := range r.nodes {
				n.change(func() { n.lie = lie })
			}
		}
		chain.grow(2) // no client has verified their headers yet
		without(func(answer any) error {
			if _, is := answer.(*ctypes.ResultCommit); is {
				return errDial
			}
			return nil
		})
		short, cancel := context.WithTimeout(r.ctx, 20*time.Second)
		defer cancel()
		require.Error(t, k.Wait(short))
		without(nil)
		short, cancel = context.WithTimeout(r.ctx, 20*time.Second)
		defer cancel()
		require.NoError(t, k.Wait(short))
		_, ok := k.Get([]byte("k"))
		require.True(t, ok)
	})
}

// TestWatchFromTheFuture: a watch that would begin far above the newest block is refused at once,
// unless a node that catches up may know that height later.
func TestWatchFromTheFuture(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(r *trio)
		ahead   int64 // of the newest block
		refused bool
	}{
		"the next block":           {ahead: 1},
		"a node is behind":         {ahead: maxAhead},
		"far":                      {ahead: maxAhead + 1, refused: true},
		"absurd":                   {ahead: 1 << 40, refused: true},
		"most absurd":              {ahead: 1<<62 + 1<<61, refused: true},
		"others are lost":          {ahead: 1 << 40, refused: true, change: func(r *trio) { faults["killed"](r.nodes[1]); faults["killed"](r.nodes[2]) }},
		"one node catches up":      {ahead: 1 << 40, change: func(r *trio) { catchUps["blocks"](r.nodes[2]) }},
		"the nearest is behind":    {ahead: 1, change: func(r *trio) { r.nodes[0].lag = maxAhead + 5 }},
		"most of them are behind":  {ahead: 1, change: func(r *trio) { r.nodes[0].lag, r.nodes[1].lag = maxAhead+5, maxAhead+5 }},
		"one of them is stopped":   {ahead: 1 << 40, refused: true, change: func(r *trio) { r.nodes[1].stopped = make(chan struct{}) }},
		"a token of an old height": {ahead: -1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newTrio(t)
				r.chain.grow(maxAhead + 10)
				newest := int64(len(r.chain.blocks))
				if test.change != nil {
					r.chain.mu.Lock()
					test.change(r)
					r.chain.mu.Unlock()
				}
				began := time.Now()
				_, err := r.Watch(r.ctx, nil, WatchFromHeight(newest+test.ahead))
				require.Less(t, time.Since(began), 2*statusTimeout)
				if !test.refused {
					require.NoError(t, err)
					return
				}
				var future *FutureError
				require.ErrorAs(t, err, &future)
				require.Equal(t, newest, future.Newest)
				require.ErrorContains(t, err, fmt.Sprintf("the newest block is %d", newest))
			})
		})
	}
}
