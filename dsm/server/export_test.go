package server

import "time"

// Damaged is damaged.
var Damaged = damaged

// Expire drops incomplete updates, as if their deadlines had passed.
func (r *Replica) Expire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.waiting.expire(time.Now().Add(24 * time.Hour))
	r.mu.waiting.takeSlow()
}
