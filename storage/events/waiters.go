package events

import (
	"bytes"
	"sync"

	"github.com/starling-kv/starling/event"
)

// waiter is a request that waits for an event of its keys. It is woken once.
type waiter struct {
	keys  event.Keys
	woken chan struct{}
}

// waiters finds those whose keys an event is of: by the key itself, and by each of its prefixes
// whose length somebody waits for. So an event costs as many look-ups as there are such lengths,
// however many wait. Other ranges are searched in the block, one by one.
type waiters struct {
	sync.Mutex
	number   int
	exact    map[string]map[*waiter]struct{}
	prefixes map[string]map[*waiter]struct{}
	lengths  map[int]int // of prefixes: how many wait
	ranges   map[*waiter]struct{}
}

func newWaiters() *waiters {
	return &waiters{
		exact: map[string]map[*waiter]struct{}{}, prefixes: map[string]map[*waiter]struct{}{},
		lengths: map[int]int{}, ranges: map[*waiter]struct{}{},
	}
}

// shape returns the one key of a range, or the prefix that all its keys have.
func shape(k event.Keys) (text []byte, exact, prefix bool) {
	n := len(k.Start)
	switch {
	case len(k.End) == n+1 && k.End[n] == 0 && bytes.Equal(k.End[:n], k.Start):
		return k.Start, true, false
	case bytes.Equal(k.End, prefixEnd(k.Start)):
		return k.Start, false, true
	}
	return nil, false, false
}

// prefixEnd returns the least key above all keys that start with prefix, nil if there is none.
func prefixEnd(prefix []byte) []byte {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] != 0xff {
			end := bytes.Clone(prefix[:i+1])
			end[i]++
			return end
		}
	}
	return nil
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

// matching returns those who wait for a key that n has changed.
func (s *waiters) matching(n *block) []*waiter {
	found := map[*waiter]struct{}{}
	add := func(set map[*waiter]struct{}) {
		for w := range set {
			found[w] = struct{}{}
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
		for length := range s.lengths {
			if length <= len(key) {
				add(s.prefixes[string(key[:length])])
			}
		}
	}
	for w := range s.ranges {
		if len(n.find(w.keys, 0)) > 0 {
			found[w] = struct{}{}
		}
	}
	list := make([]*waiter, 0, len(found))
	for w := range found {
		list = append(list, w)
	}
	return list
}

// register makes a request wait, which has read all that was published before its token; nil:
// there is more already. What is published afterwards finds it.
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

// forget removes a waiter, unless it was woken.
func (l *Log) forget(w *waiter) {
	l.waiting.Lock()
	defer l.waiting.Unlock()
	select {
	case <-w.woken:
	default:
		l.waiting.remove(w)
	}
}

// publish wakes those who wait for what was published, until the log is closed.
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

// toWake returns the blocks that were published since the last call. All of them are in memory.
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
	Least, Head int64 // heights whose events are there
	Bytes       uint64
	Backlog     int64 // bytes that wait for the disk
	Waiting     int   // requests that wait for an event
	// Anew is how often it began anew, since the start: what it had was damaged, of a newer layout,
	// or did not lead up to the state.
	Anew uint64

	Answers, Refused, Compacted, Events uint64 // since the start
}

// Stats returns how the log is.
func (l *Log) Stats() Stats {
	l.waiting.Lock()
	waiting := l.waiting.number
	l.waiting.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	return Stats{
		Least: l.mu.base + 1, Head: l.mu.published, Bytes: l.mu.total - l.mu.trimmed, Backlog: l.mu.backlog, Waiting: waiting, Anew: l.mu.anew,
		Answers: l.mu.answers, Refused: l.mu.refused, Compacted: l.mu.compacted, Events: l.mu.events,
	}
}
