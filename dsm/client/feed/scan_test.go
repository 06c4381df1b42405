package feed

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/internal/heap"
)

// scan compares the indices with what visiting every queue, node and replica finds.
func (w *watch) scan() error {
	if err := errors.Join(w.polls.Check(), w.sends.Check(), w.spare.Check(), w.blocked.Check(), w.slowest.Check()); err != nil {
		return err
	}
	next := dues{}
	for _, n := range w.byName {
		if !n.polling {
			at := n.until
			if n.polled {
				at = max(at, n.heard+w.policy.Poll)
			}
			next.add(at)
		}
	}
	all, kept, over := w.head, uint64(0), w.kept > w.policy.KeepBytes
	for _, q := range w.inOrder() {
		var heights []int64
		for _, r := range q.replicas {
			if _, at, any := w.Machine.next(r); any {
				next.add(max(at, r.until))
			}
			if r.state != Unheard {
				heights = append(heights, min(r.durable, w.head))
			}
		}
		slices.Sort(heights)
		durable := int64(0)
		if n := len(heights) - w.policy.MinAcks; n >= 0 {
			durable = heights[n]
		}
		if got := w.Durable(q.shard); got != durable {
			return fmt.Errorf("range %d is durable at %d, not at %d", q.shard, durable, got)
		}
		if !q.next {
			all = min(all, durable)
		}
		kept += w.Queued(q.shard)
		if unpinned := q.first <= min(w.needed(q)-1, w.head); unpinned != w.spare.Has(q) || unpinned && over {
			return fmt.Errorf("range %d keeps updates from %d on, replicas need %d; %d bytes are kept in all", q.shard, q.first, w.needed(q), w.kept)
		}
		if err := w.settled(q); err != nil {
			return err
		}
	}
	if kept != w.kept {
		return fmt.Errorf("%d bytes are kept, and %d counted", kept, w.kept)
	}
	if got := w.AllDurable(); got != all {
		return fmt.Errorf("all ranges are durable at %d, not at %d", all, got)
	}
	at, ok := w.Next()
	if (next != dues{ok, at}) {
		return fmt.Errorf("the next thing is due at %+v, not at %v", next, at)
	}
	first, any := w.FirstBlocked()
	if blocked := w.Blocked(); any != (len(blocked) > 0) || any && !first.Range.Equal(blocked[0].Range) {
		return fmt.Errorf("blocked are %+v, the first %+v", blocked, first)
	}
	return nil
}

// needed returns the lowest height that an unheard replica, or one in step, does not have on disk.
func (w *watch) needed(q *queue) int64 {
	height := w.head + 1
	inStep := 0
	for _, r := range q.replicas {
		switch r.state {
		case Unheard:
			height = min(height, r.start+1)
		case InStep:
			inStep++
			height = min(height, r.durable+1)
		case Lagging:
		}
	}
	if inStep < w.policy.MinAcks {
		height = min(height, w.head-minLagBlocks+1)
	}
	return height
}

// settled reports whether another look at a queue would change nothing.
func (w *watch) settled(q *queue) error {
	w.actions = nil
	first := q.first
	w.standing(q)
	w.unpin(q)
	if len(w.actions) > 0 || q.first != first {
		return fmt.Errorf("range %d was overlooked: %+v, first %d, then %d", q.shard, w.actions, first, q.first)
	}
	return nil
}

// dues is the earliest of several times.
type dues struct {
	any bool
	at  time.Duration
}

func (d *dues) add(at time.Duration) {
	if !d.any || at < d.at {
		*d = dues{true, at}
	}
}

// manyRanges returns ranges with three replicas each; each node keeps 30 replicas.
func manyRanges(t testing.TB, n int) *dsm.Ranges {
	key := func(i int) []byte {
		if i == 0 || i == n {
			return nil
		}
		return fmt.Appendf(nil, "%05d", i)
	}
	var of []dsm.Placement
	for i := range n {
		p := dsm.Placement{Range: avlstar.KeyRange{First: key(i), After: key(i + 1)}}
		for k := range 3 {
			p.Replicas = append(p.Replicas, dsm.NodeID(fmt.Sprintf("node%05d-%d", i/30, k)))
		}
		of = append(of, p)
	}
	r, err := dsm.NewRanges(of)
	require.NoError(t, err)
	return r
}

// large is a network with many ranges, whose replicas answer each Send at once.
type large struct {
	m     *Machine
	rng   *rand.Rand
	now   time.Duration
	most  map[string]int // visits of replicas by one event that is not a block, by type of event
	sends heap.Heap[*sending]
	n     int
}

type sending struct {
	at    time.Duration
	n     int
	place int
	send  Send
}

func newLarge(t testing.TB, ranges int, p Policy) *large {
	m, err := New(manyRanges(t, ranges), p, 0)
	require.NoError(t, err)
	return &large{m: m, rng: rand.New(rand.NewPCG(1, uint64(ranges))), most: map[string]int{}, sends: heap.Heap[*sending]{
		Before: func(a, b *sending) bool { return a.at < b.at || a.at == b.at && a.n < b.n },
		Place:  func(s *sending) *int { return &s.place },
	}}
}

func (l *large) step(e Event) {
	before := l.m.visits
	actions := l.m.Step(l.now, e)
	if name := fmt.Sprintf("%T", e); name != "feed.Committed" {
		// A Send that is due visits its replica, whatever the event was.
		l.most[name] = max(l.most[name], l.m.visits-before-len(actions))
	}
	for _, a := range actions {
		switch a := a.(type) {
		case Send:
			l.n++
			l.sends.Push(&sending{at: l.now + time.Duration(1+l.rng.IntN(50))*time.Millisecond, n: l.n, send: a})
		case Poll:
			l.step(Claimed{a.Node, l.m.claims(a.Node, max(l.m.head-2, 0), l.m.head+1)})
		}
	}
}

// block makes a block with updates of the given size, and delivers it to all replicas.
func (l *large) block(bytes uint64) {
	sizes := make([]uint64, len(l.m.queues))
	for i := range sizes {
		sizes[i] = bytes
	}
	l.step(Committed{l.m.head + 1, sizes})
	for s, any := l.sends.First(); any; s, any = l.sends.First() {
		l.sends.Remove(s)
		l.now = s.at
		if l.rng.IntN(100) == 0 {
			l.step(NotSent{s.send.Node, s.send.Shard})
			continue
		}
		l.step(Sent{s.send.Node, s.send.Shard, dsm.UpdateAnswer{Durable: s.send.Height - 2, Needs: s.send.Height + 1}, true, false})
	}
	l.now += time.Second
	l.step(Tick{})
}

// TestVisits: an event visits as many replicas with 4,000 ranges as with 100.
func TestVisits(t *testing.T) {
	var first map[string]int
	for _, ranges := range []int{100, 1000, 4000} {
		l := newLarge(t, ranges, DefaultPolicy())
		l.step(Tick{})
		for range 5 {
			l.block(1000)
		}
		if first == nil {
			first = l.most
		}
		t.Logf("%d ranges: most visits of a replica by an event: %v", ranges, l.most)
		require.Equal(t, first, l.most, "%d ranges", ranges)
		const perReplica, replicas = 8, 3 // visits of a replica, replicas of a range
		require.LessOrEqual(t, l.most["feed.Sent"], perReplica*replicas)
		require.LessOrEqual(t, l.most["feed.NotSent"], 1)
		require.LessOrEqual(t, l.most["feed.Claimed"], perReplica*replicas*30)
		require.Zero(t, l.most["feed.Tick"])
	}
}

// TestKept: with any number of ranges, what a validator keeps for slow replicas has one limit, and
// the oldest heights are dropped first.
func TestKept(t *testing.T) {
	const bytes = 16_000 // of each update
	for _, ranges := range []int{100, 1000, 4000} {
		l := newLarge(t, ranges, DefaultPolicy())
		l.step(Tick{})
		for l.m.kept < l.m.policy.KeepBytes*9/10 {
			l.block(bytes)
		}
		l.block(bytes)
		l.block(bytes)
		pinned := 3 * bytes * uint64(ranges) // replicas are two blocks behind
		first := l.m.queues[0].first
		for _, q := range l.m.queues {
			require.InDelta(t, first, q.first, 1, "range %d", q.shard)
		}
		t.Logf("%d ranges, block %d: %d MiB are kept, %d bytes of each range", ranges, l.m.head, l.m.kept>>20, l.m.kept/uint64(ranges))
		require.LessOrEqual(t, l.m.kept, max(l.m.policy.KeepBytes, pinned))
		require.Less(t, l.m.kept, uint64(1<<30))
	}
}
