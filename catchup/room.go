package catchup

import "sync"

// room is the memory of a run: of answers that are decoded or wait to be executed, and of long ones
// under way. It blocks no one: what does not fit is given up, and re-requested when it is the next
// one, which always fits.
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

// lease is a part of a room. It begins with nothing.
type lease struct {
	room     *room
	bytes    int64 // guarded by room.mu
	released bool  // guarded by room.mu
}

// resize changes how many bytes are leased, and reports whether it did. It does if it shrinks,
// or if next is true, and always fails after release.
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

// release gives all of it back, for good.
func (l *lease) release() {
	l.room.mu.Lock()
	defer l.room.mu.Unlock()
	l.room.mu.used -= l.bytes
	l.bytes, l.released = 0, true
}

// leases are those of a search, which may have asked several peers.
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

// end releases all but one, or all: the search is over, though a peer may not have heard of that.
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
