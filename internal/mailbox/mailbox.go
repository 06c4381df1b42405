// Package mailbox passes events from goroutines to the loop that handles them.
package mailbox

import (
	"sync"

	"github.com/starling-kv/starling/internal/wake"
)

// Mailbox collects events from any goroutine, in order. It has no size limit; its user must bound
// the number of events. Put never blocks, so it may be called under a lock.
type Mailbox[E any] struct {
	wake chan struct{} // holds an element when there may be something to take

	mu    sync.Mutex
	queue []E // guarded by mu
}

// New returns an empty mailbox.
func New[E any]() *Mailbox[E] { return &Mailbox[E]{wake: make(chan struct{}, 1)} }

// Wake receives an element when there may be something to take.
func (m *Mailbox[E]) Wake() <-chan struct{} { return m.wake }

// Put adds an event.
func (m *Mailbox[E]) Put(e E) {
	m.mu.Lock()
	m.queue = append(m.queue, e)
	m.mu.Unlock()
	wake.Up(m.wake)
}

// Take returns the events added since the last call.
func (m *Mailbox[E]) Take() []E {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.queue
	m.queue = nil
	return all
}
