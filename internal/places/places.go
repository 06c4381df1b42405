// Package places limits what is in progress at once, so that no client can keep the others out.
package places

import "sync"

// Places are the calls in progress, by client. The zero value has none.
type Places[K comparable] struct {
	mu      sync.Mutex
	taken   int       // guarded by mu
	clients map[K]int // guarded by mu; never 0
}

// Take takes a place for a client, unless most places are taken. A client gets at most half of the
// places that others leave. release gives the place back; it is nil if there is none.
func (p *Places[K]) Take(client K, most int) (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken+p.clients[client] >= most {
		return nil
	}
	if p.clients == nil {
		p.clients = make(map[K]int)
	}
	p.taken++
	p.clients[client]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.taken--
		if p.clients[client]--; p.clients[client] == 0 {
			delete(p.clients, client)
		}
	}
}

// TakeAny takes a place for a client that may take all, unless most places are taken.
func (p *Places[K]) TakeAny(most int) (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken >= most {
		return nil
	}
	p.taken++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.taken--
	}
}

// Taken returns the number of places taken.
func (p *Places[K]) Taken() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}
