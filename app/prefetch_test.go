package app

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/bubble"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/tx"
)

// gatedSource is a fakeSource whose requests wait until the test releases them.
type gatedSource struct {
	*fakeSource
	gate struct {
		sync.Mutex
		open    bool // requests do not wait
		waiting []*gated
	}
}

type gated struct {
	wants   []avlstar.Want
	release chan error
}

func (s *gatedSource) Fetch(ctx context.Context, height int64, wants []avlstar.Want, below avlstar.Below) ([]*avlstar.Multiproof, error) {
	g := &gated{wants, make(chan error)}
	s.gate.Lock()
	open := s.gate.open
	if !open {
		s.gate.waiting = append(s.gate.waiting, g)
	}
	s.gate.Unlock()
	if open {
		return s.fakeSource.Fetch(ctx, height, wants, below)
	}
	select {
	case err := <-g.release:
		if err != nil {
			return nil, err
		}
		return s.fakeSource.Fetch(ctx, height, wants, below)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// inFlight returns the requests that wait, and checks that no want is in two of them.
func (s *gatedSource) inFlight() []*gated {
	synctest.Wait()
	s.gate.Lock()
	defer s.gate.Unlock()
	wanted := map[string]bool{}
	for _, g := range s.gate.waiting {
		for _, w := range g.wants {
			require.False(s.t, wanted[idOf(w)], "%q is in flight twice", w.Key)
			wanted[idOf(w)] = true
		}
	}
	return slices.Clone(s.gate.waiting)
}

func (s *gatedSource) release(g *gated, err error) {
	s.gate.Lock()
	s.gate.waiting = slices.DeleteFunc(s.gate.waiting, func(other *gated) bool { return other == g })
	s.gate.Unlock()
	g.release <- err
}

const aheadKeys = 2400

// startAheadOf starts an application in which the nodes of wants are missing.
func startAheadOf(t *testing.T) (source *gatedSource, a *App, wants []avlstar.Want) {
	local := startChain(t, &memoryStore{}, witnessedState)
	for i := range 4 {
		var txs [][]byte
		for k := range 12 {
			var operations []tx.Operation
			for range aheadKeys / 48 {
				key := fmt.Sprintf("a%04d", len(wants))
				wants = append(wants, avlstar.Want{Key: []byte(key)})
				operations = append(operations, put(key, "value"))
			}
			txs = append(txs, sign(t, "alice", uint64(12*i+k), operations...))
		}
		runBlock(t, local, txs...)
	}
	source = &gatedSource{fakeSource: newFakeSource(t, nil)}
	source.has(local)
	source.gate.open = true
	a = startBare(t, local, source, avlstar.Retention{})
	source.gate.open = false
	return source, a, wants
}

// checkAhead requests wants as CheckTx does.
func checkAhead(a *App, wants []avlstar.Want) {
	_, v := a.Latest()
	defer v.Release()
	a.askChecked(v, wants)
}

// missing returns those wants whose nodes are missing.
func missing(a *App, wants []avlstar.Want) []avlstar.Want {
	_, v := a.Latest()
	defer v.Release()
	lacking, _ := v.Missing(wants)
	return lacking
}

// A lane has eight full requests in flight, and no ninth. Their answers may arrive in any order,
// and those that do not arrive can be requested again.
func TestEightRequestsAreInFlight(t *testing.T) {
	rnd := seeds.Rand(t)
	synctest.Test(t, func(t *testing.T) {
		source, a, wants := startAheadOf(t)
		defer a.Stop()
		checkAhead(a, wants[:maxRequest])
		require.Len(t, source.inFlight(), 1)
		checkAhead(a, wants) // those in flight are not requested again
		waiting := source.inFlight()
		require.Len(t, waiting, maxInFlight)
		for _, g := range waiting {
			require.Len(t, g.wants, maxRequest)
		}
		failed := waiting[3]
		source.release(failed, errSource)
		for waiting = source.inFlight(); len(waiting) > 0; waiting = source.inFlight() {
			require.LessOrEqual(t, len(waiting), maxInFlight)
			source.release(waiting[rnd.IntN(len(waiting))], nil)
		}
		require.Equal(t, failed.wants, missing(a, wants), "they were not queued again")
		checkAhead(a, wants)
		waiting = source.inFlight()
		require.Len(t, waiting, 1)
		source.release(waiting[0], nil)
		synctest.Wait()
		require.Empty(t, missing(a, wants))
	})
}

// Eight requests are in flight at a time, so the last wants are requested after the second answers.
func TestPrefetchRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, a, wants := startAheadOf(t)
		defer a.Stop()
		source.gate.open = true
		const trip = 80 * time.Millisecond
		source.delayed(trip)
		began := time.Now()
		checkAhead(a, wants)
		for len(missing(a, wants)) > 0 {
			bubble.Sleep(trip)
			synctest.Wait()
		}
		require.Equal(t, 3*trip, time.Since(began))
	})
}

// Requests of a range that nobody answers do not hold up those of another.
func TestSlowRangeDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, a, wants := startAheadOf(t)
		defer a.Stop()
		const edge = aheadKeys - 200
		a.options.Edges = func() [][]byte { return [][]byte{wants[edge].Key} }
		checkAhead(a, wants)
		waiting := source.inFlight()
		require.Len(t, waiting, maxInFlight+1)
		for _, g := range waiting {
			if string(g.wants[0].Key) >= string(wants[edge].Key) {
				require.Equal(t, wants[edge:], g.wants)
				source.release(g, nil)
			}
		}
		require.Len(t, source.inFlight(), maxInFlight)
		require.Equal(t, wants[:edge], missing(a, wants))
	})
}

// Stop ends all requests, and none begins afterwards.
func TestStopEndsPrefetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, a, wants := startAheadOf(t)
		checkAhead(a, wants)
		waiting := source.inFlight()
		began := time.Now()
		a.Stop()
		require.Zero(t, time.Since(began))
		checkAhead(a, wants)
		require.Equal(t, waiting, source.inFlight(), "there are no others")
	})
}

// At most aheadBytes are fetched between two blocks, and requests in flight may return no more than
// the rest of them, except for one of each lane. A request has as many wants as bring requestBytes.
func TestFetchedAheadIsBounded(t *testing.T) {
	const value, lanes = 1 << 20, 40
	rnd := seeds.Rand(t)
	var l line
	for i := range 6000 {
		l.queue(i%lanes, uncheckedWant{Want: avlstar.Want{Key: fmt.Appendf(nil, "key %d", i)}})
		l.queue(i%lanes, uncheckedWant{avlstar.Want{Key: fmt.Appendf(nil, "record %d", i)}, &unchecked{left: 1}})
	}
	var flying []*request
	most := 0
	for {
		for r := l.next(maxInFlight); r != nil; r = l.next(maxInFlight) {
			flying, most = append(flying, r), max(most, len(r.wants))
			require.LessOrEqual(t, l.lanes[r.lane].requests, maxInFlight)
			if l.lanes[r.lane].named != nil { // more named wants wait
				records := 0
				for _, w := range r.wants {
					if bytes.HasPrefix(w.Key, []byte("record")) {
						records++
					}
				}
				require.LessOrEqual(t, records, len(r.wants)/2, "a half for each kind")
			}
			require.LessOrEqual(t, len(flying), maxLanesInFlight+inFlightBytes/(requestBytes/2))
			if l.lanes[r.lane].requests > 1 {
				require.LessOrEqual(t, l.bytes+l.requests*max(l.expected, requestBytes/2), aheadBytes)
				require.LessOrEqual(t, l.requests*max(l.expected, requestBytes/2), inFlightBytes)
			}
		}
		if len(flying) == 0 {
			break
		}
		i := rnd.IntN(len(flying))
		r := flying[i]
		flying = slices.Delete(flying, i, i+1)
		before := l.bytes
		l.ended(r, len(r.wants)*rnd.IntN(value)/16)
		require.LessOrEqual(t, before, aheadBytes+(inFlightBytes/(requestBytes/2)+lanes)*maxRequest*value/16)
	}
	require.Positive(t, most)
	require.Empty(t, l.lanes)
	require.Empty(t, l.flights)
	require.Greater(t, l.bytes, aheadBytes)
	l.bytes = 0
	l.queue(0, uncheckedWant{Want: avlstar.Want{Key: []byte("key")}})
	require.Len(t, l.next(maxInFlight).wants, 1)
}

// In random orders of requests and answers, each want is in flight once at a time, a want that
// opens more is requested after it, and a transaction is checked once all its wants have arrived.
func TestLineRequestsEachWantOnce(t *testing.T) {
	rnd := seeds.Rand(t)
	var (
		l       line
		flying  []*request
		inAir   = map[string]bool{}
		deleted = map[string]bool{} // keys whose neighbours must be requested
		left    = map[byte]int{}    // wants of transactions that were not requested since
	)
	end := func(i int) {
		r := flying[i]
		flying = slices.Delete(flying, i, i+1)
		for _, w := range r.wants {
			delete(inAir, string(w.Key))
			if w.Deleted {
				delete(deleted, string(w.Key))
			}
		}
		for _, id := range l.ended(r, 1000*len(r.wants)) {
			require.Contains(t, left, id[0])
			delete(left, id[0])
		}
	}
	for step := range 5000 {
		w := avlstar.Want{Key: []byte{byte(rnd.IntN(200))}, Deleted: rnd.IntN(4) == 0}
		lane := int(w.Key[0]) % 3
		switch rnd.IntN(3) {
		case 0:
			of := &unchecked{[32]byte{byte(step), 1}, 1}
			if _, again := left[byte(step)]; !again {
				left[byte(step)] = 1
				l.queue(lane, uncheckedWant{avlstar.Want{Key: w.Key}, of})
			}
		default:
			l.queue(lane, uncheckedWant{Want: w})
			if w.Deleted {
				deleted[string(w.Key)] = true
			}
		}
		if rnd.IntN(5) == 0 {
			for r := l.next(maxInFlight); r != nil; r = l.next(maxInFlight) {
				for _, w := range r.wants {
					require.False(t, inAir[string(w.Key)], "%x is in flight twice", w.Key)
					inAir[string(w.Key)] = true
				}
				flying = append(flying, r)
			}
		}
		if len(flying) > 0 && rnd.IntN(5) == 0 {
			end(rnd.IntN(len(flying)))
		}
	}
	for {
		for r := l.next(maxInFlight); r != nil; r = l.next(maxInFlight) {
			flying = append(flying, r)
		}
		if len(flying) == 0 {
			break
		}
		end(0)
	}
	require.Empty(t, left)
	require.Empty(t, deleted)
	require.Empty(t, l.flights)
	require.Empty(t, l.lanes)
	require.Zero(t, l.named+l.unchecked+l.requests)
}

func TestWantsThatLookAlike(t *testing.T) {
	n := new(needs)
	n.add(avlstar.Want{Range: true, Key: []byte("a"), After: []byte("bc")})
	n.add(avlstar.Want{Range: true, Key: []byte("ab"), After: []byte("c")})
	n.add(avlstar.Want{Range: true, Key: []byte("abc")})
	require.Len(t, n.wants, 3)
}
