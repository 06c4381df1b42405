// Package slots limits the calls in progress, so that no client can keep the others out.
package slots

import "sync"

// Slots counts the calls in progress, by client. The zero value has none.
type Slots[K comparable] struct {
	mu      sync.Mutex
	taken   int       // guarded by mu
	clients map[K]int // guarded by mu; never 0
}

// Take takes one of limit slots for a client, which gets at most half of those that others leave.
// release frees the slot; it is nil if the client gets none.
func (s *Slots[K]) Take(client K, limit int) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken+s.clients[client] >= limit {
		return nil
	}
	if s.clients == nil {
		s.clients = make(map[K]int)
	}
	s.taken++
	s.clients[client]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.taken--
		if s.clients[client]--; s.clients[client] == 0 {
			delete(s.clients, client)
		}
	}
}

// TakeAny takes one of limit slots for a client that may take all of them.
func (s *Slots[K]) TakeAny(limit int) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken >= limit {
		return nil
	}
	s.taken++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.taken--
	}
}

// Taken returns the number of taken slots.
func (s *Slots[K]) Taken() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken
}
