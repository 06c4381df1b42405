package events

import (
	"bytes"
	"sync"

	"github.com/starling-kv/starling/app/event"
	"github.com/starling-kv/starling/internal/keyspace"
)

// waiter is a request that waits for an event of its keys. It is woken once.
type waiter struct {
	keys  event.Keys
	woken chan struct{}
}

// waiters finds the requests that wait for an event: by the event's key, and by each prefix of the
// key with a length in use. So an event costs one lookup for each length, regardless of the number
// of requests. If there are many lengths, each prefix costs two searches in the block instead.
// Other ranges are matched against the block one by one.
type waiters struct {
	sync.Mutex
	number   int
	exact    map[string]map[*waiter]struct{}
	prefixes map[string]map[*waiter]struct{}
	lengths  map[int]int // number of waiting requests by prefix length
	ranges   map[*waiter]struct{}
}

func newWaiters() *waiters {
	return &waiters{
		exact: map[string]map[*waiter]struct{}{}, prefixes: map[string]map[*waiter]struct{}{},
		lengths: map[int]int{}, ranges: map[*waiter]struct{}{},
	}
}

// shape returns the only key of a range (exact), or the common prefix of its keys (prefix).
func shape(k event.Keys) (text []byte, exact, prefix bool) {
	n := len(k.Start)
	switch {
	case len(k.End) == n+1 && k.End[n] == 0 && bytes.Equal(k.End[:n], k.Start):
		return k.Start, true, false
	case bytes.Equal(k.End, keyspace.PrefixEnd(k.Start)):
		return k.Start, false, true
	}
	return nil, false, false
}

func (s *waiters) add(w *waiter) {
	s.number++
	text, exact, prefix := shape(w.keys)
	switch {
	case exact:
		addTo(s.exact, text, w)
	case prefix:
		addTo(s.prefixes, text, w)
		s.lengths[len(text)]++
	default:
		s.ranges[w] = struct{}{}
	}
}

func (s *waiters) remove(w *waiter) {
	s.number--
	text, exact, prefix := shape(w.keys)
	switch {
	case exact:
		removeFrom(s.exact, text, w)
	case prefix:
		removeFrom(s.prefixes, text, w)
		if s.lengths[len(text)]--; s.lengths[len(text)] == 0 {
			delete(s.lengths, len(text))
		}
	default:
		delete(s.ranges, w)
	}
}

func addTo(sets map[string]map[*waiter]struct{}, text []byte, w *waiter) {
	set := sets[string(text)]
	if set == nil {
		set = map[*waiter]struct{}{}
		sets[string(text)] = set
	}
	set[w] = struct{}{}
}

func removeFrom(sets map[string]map[*waiter]struct{}, text []byte, w *waiter) {
	set := sets[string(text)]
	delete(set, w)
	if len(set) == 0 {
		delete(sets, string(text))
	}
}

// searches is the approximate cost of a search in a block's keys, in lookups of a prefix.
const searches = 32

// matching returns the requests that wait for a key that n changed. n is encoded.
func (s *waiters) matching(n *block) []*waiter {
	found := map[*waiter]struct{}{}
	add := func(set map[*waiter]struct{}) {
		for w := range set {
			found[w] = struct{}{}
		}
	}
	lengths := s.lengths
	if len(n.byKey)*len(s.lengths) > searches*len(s.prefixes) {
		lengths = nil
		for prefix, set := range s.prefixes {
			if lo, hi := n.between(event.Keys{Start: []byte(prefix), End: keyspace.PrefixEnd([]byte(prefix))}); lo < hi {
				add(set)
			}
		}
	}
	var last []byte
	for _, i := range n.byKey {
		key := n.events[i].Key
		if s.number == len(found) || bytes.Equal(key, last) {
			continue
		}
		last = key
		add(s.exact[string(key)])
		for length := range lengths {
			if length <= len(key) {
				add(s.prefixes[string(key[:length])])
			}
		}
	}
	for w := range s.ranges {
		if lo, hi := n.between(w.keys); lo < hi {
			found[w] = struct{}{}
		}
	}
	list := make([]*waiter, 0, len(found))
	for w := range found {
		list = append(list, w)
	}
	return list
}

// register adds a waiter for a request that has read everything published before its token. nil:
// more was published meanwhile. Later blocks wake the request.
func (l *Log) register(r event.Request) (*waiter, error) {
	l.waiting.Lock()
	defer l.waiting.Unlock()
	l.mu.Lock()
	published := l.mu.published
	l.mu.Unlock()
	switch {
	case published >= r.From.Height:
		return nil, nil
	case l.waiting.number >= l.o.MaxWaiting:
		return nil, ErrBusy
	}
	w := &waiter{keys: r.Keys, woken: make(chan struct{})}
	l.waiting.add(w)
	return w, nil
}

// forget removes a waiter that was not woken.
func (l *Log) forget(w *waiter) {
	l.waiting.Lock()
	defer l.waiting.Unlock()
	select {
	case <-w.woken:
	default:
		l.waiting.remove(w)
	}
}

// publish wakes the requests that wait for published blocks, until the log is closed.
func (l *Log) publish() {
	for {
		select {
		case <-l.published:
		case <-l.closing:
			return
		}
		for _, n := range l.toWake() {
			n.encode()
			l.waiting.Lock()
			for _, w := range l.waiting.matching(n) {
				l.waiting.remove(w)
				close(w.woken)
			}
			l.waiting.Unlock()
		}
	}
}

// toWake returns the blocks published since the last call. All of them are in memory.
func (l *Log) toWake() []*block {
	l.mu.Lock()
	defer l.mu.Unlock()
	var blocks []*block
	for h := l.mu.woken + 1; h <= l.mu.published; h++ {
		if n := l.mu.block(h); n != nil {
			blocks = append(blocks, n)
		}
	}
	l.mu.woken = max(l.mu.woken, l.mu.published)
	return blocks
}

// Stats describes a log.
type Stats struct {
	Least, Head int64 // first and last height whose events are answered
	Bytes       uint64
	Backlog     int64 // bytes that wait to be written
	Waiting     int   // number of requests that wait for an event
	// Replaced counts how often the log was replaced by an empty one since the start, because it
	// was damaged, had a newer layout, or did not reach the state.
	Replaced uint64

	Answers, Refused, Compacted, Events uint64 // since the start
}

// Stats returns statistics of the log.
func (l *Log) Stats() Stats {
	l.waiting.Lock()
	waiting := l.waiting.number
	l.waiting.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	return Stats{
		Least: l.mu.base + 1, Head: l.mu.published, Bytes: l.mu.total - l.mu.trimmed, Backlog: l.mu.backlog, Waiting: waiting, Replaced: l.mu.replaced,
		Answers: l.mu.answers, Refused: l.mu.refused, Compacted: l.mu.compacted, Events: l.mu.events,
	}
}
