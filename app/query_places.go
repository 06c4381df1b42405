package app

import (
	"context"
	"sync"
)

// clientKey is the key of a query's client in its context.
type clientKey struct{}

// ForClient returns a context for the queries of a client. Queries without it, such as those over
// JSON-RPC, are those of one client.
func ForClient(ctx context.Context, client string) context.Context {
	return context.WithValue(ctx, clientKey{}, client)
}

// queryPlaces are the fetches of queries in progress, at most maxWaitingQueries.
type queryPlaces struct {
	mu      sync.Mutex
	taken   int            // guarded by mu
	clients map[string]int // guarded by mu; never 0
}

// take takes a place. A client gets at most half of the places that others leave, so that it cannot
// keep them out. release gives the place back; it is nil if there is none.
func (p *queryPlaces) take(ctx context.Context) (release func()) {
	client, _ := ctx.Value(clientKey{}).(string)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken+p.clients[client] >= maxWaitingQueries {
		return nil
	}
	if p.clients == nil {
		p.clients = make(map[string]int)
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

// areTaken reports whether no client would get a place.
func (p *queryPlaces) areTaken() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken >= maxWaitingQueries
}
