package storagenode

import "time"

// Expire drops what is not complete, as time does.
func (r *Replica) Expire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.waiting.expire(time.Now().Add(24 * time.Hour))
	r.mu.waiting.takeSlow()
}
