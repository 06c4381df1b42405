package catchup

import "sync"

// room limits the memory of a run: decoded answers, answers that wait to be executed, and long
// answers in flight. It never blocks: an answer that does not fit is dropped and requested again
// when it is the next one, which always fits.
//
//	a long block's need ──► lease ──► its answer ─┐
//	a short answer ───────► lease ────────────────┴─► counted ──► decoded ──► executed ──► released
type room struct {
	most int64 // bytes
	mu   struct {
		sync.Mutex
		used int64
	}
}

func (r *room) bytes() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.used
}

// lease is a part of a room. It is initially empty.
type lease struct {
	room     *room
	bytes    int64 // guarded by room.mu
	released bool  // guarded by room.mu
}

// resize changes the number of leased bytes. It succeeds if the lease shrinks, if there is room, or
// if next is true. It always fails after release.
func (l *lease) resize(bytes int64, next bool) bool {
	l.room.mu.Lock()
	defer l.room.mu.Unlock()
	by := bytes - l.bytes
	if l.released || by > 0 && !next && l.room.mu.used+by > l.room.most {
		return false
	}
	l.room.mu.used += by
	l.bytes = bytes
	return true
}

// release returns all bytes permanently.
func (l *lease) release() {
	l.room.mu.Lock()
	defer l.room.mu.Unlock()
	l.room.mu.used -= l.bytes
	l.bytes, l.released = 0, true
}

// leases are the leases of one search, which may ask several peers.
type leases struct {
	room *room
	mu   struct {
		sync.Mutex
		all   []*lease
		ended bool
	}
}

func (s *leases) take() *lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &lease{room: s.room, released: s.mu.ended}
	s.mu.all = append(s.mu.all, l)
	return l
}

// end releases all leases except but, which may be nil. The search is over, though calls may still
// be returning.
func (s *leases) end(but *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.ended = true
	for _, l := range s.mu.all {
		if l != but {
			l.release()
		}
	}
}
