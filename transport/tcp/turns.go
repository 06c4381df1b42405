package tcp

import (
	"context"
	"slices"
	"sync"
)

// maxParts is how many hosts of a network, or connections of a host, are remembered where not all
// of them wait.
const maxParts = 512

// turns lets requests have a few places by turns:
//
//	wait ──► waiting ──(a place is free, and its turn has come)──► running ──done──►
//
// The turn is that of the network which has used least, in it that of the network, host and
// connection which has; a connection's requests keep their order. What a request has used is known
// when it is done, in bytes or what is as much work as so many. Who waits for the first time begins
// with what the last in turn had used: idle time is not saved up (start-time fair queueing: Goyal,
// Vin and Cheng, SIGCOMM 1996).
type turns struct {
	least int64 // what a request uses at least; it is charged when it begins
	mu    struct {
		sync.Mutex
		free int // places
		all  line
	}
}

// line is a network, host or connection, and those of its parts that wait, run or have used more
// than their share. Guarded by turns.mu.
type line struct {
	key     any
	used    int64
	waiting int
	running int
	clock   int64   // what the part that had the last turn had used before it
	parts   []*line // in the order in which they came
	calls   []*turn // of a connection: those that wait, the first first
}

// turn is a request's. Guarded by turns.mu.
type turn struct {
	way   []*line       // to the connection, from below turns.all on
	begun chan struct{} // closed when it runs
}

func newTurns(places int, least int64) *turns {
	t := &turns{least: least}
	t.mu.free = places
	return t
}

// wait returns when a request of a connection, which has any key, may run. It must be done then.
// It fails with ctx's error.
func (t *turns) wait(ctx context.Context, from origin, conn any) (*turn, error) {
	r := t.join(from, conn)
	select {
	case <-r.begun:
		return r, nil
	case <-ctx.Done():
	}
	if !t.abandon(r) {
		t.done(r, 0)
	}
	return nil, ctx.Err()
}

func (t *turns) join(from origin, conn any) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := &turn{begun: make(chan struct{})}
	l := &t.mu.all
	l.waiting++
	for _, net := range from.nets {
		l = l.part(net)
		l.waiting++
		r.way = append(r.way, l)
	}
	l = l.part(conn)
	l.waiting++
	l.calls = append(l.calls, r)
	r.way = append(r.way, l)
	t.next()
	return r
}

// abandon ends the waiting of a request; false: it runs already.
func (t *turns) abandon(r *turn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := r.way[len(r.way)-1]
	at := slices.Index(last.calls, r)
	if at < 0 {
		return false
	}
	last.calls = slices.Delete(last.calls, at, at+1)
	t.mu.all.waiting--
	for _, l := range r.way {
		l.waiting--
	}
	t.forget(r)
	return true
}

// done gives the place of a request back. used is what it has used beyond the least.
func (t *turns) done(r *turn, used int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.all.running--
	for _, l := range r.way {
		l.running--
		l.used += used
	}
	t.mu.free++
	t.next()
	t.forget(r)
}

// next gives the free places to those whose turn it is. The caller holds t.mu.
func (t *turns) next() {
	for ; t.mu.free > 0 && t.mu.all.waiting > 0; t.mu.free-- {
		l := &t.mu.all
		l.waiting--
		l.running++
		for len(l.calls) == 0 {
			l = l.turn(t.least)
		}
		close(l.calls[0].begun)
		l.calls = slices.Delete(l.calls, 0, 1)
	}
}

// turn charges the part that has used least, of those that wait, and returns it; of equals, who has
// waited longest.
func (l *line) turn(least int64) (p *line) {
	for _, q := range l.parts {
		if q.waiting > 0 && (p == nil || q.used < p.used) {
			p = q
		}
	}
	l.clock = max(l.clock, p.used)
	p.used += least
	p.waiting--
	p.running++
	return p
}

// part returns the part of a key. A new one has used as much as who had the last turn.
func (l *line) part(key any) *line {
	for _, p := range l.parts {
		if p.key == key {
			if p.waiting == 0 {
				p.used = max(p.used, l.clock)
			}
			return p
		}
	}
	p := &line{key: key, used: l.clock}
	l.parts = append(l.parts, p)
	return p
}

// forget drops, on the way of a request, the parts that nobody needs to remember.
func (t *turns) forget(r *turn) {
	t.mu.all.forget()
	for _, l := range r.way {
		l.forget()
	}
}

// forget drops parts that neither wait nor run, and have used no more than a new one would have.
// Where none waits or runs, those are all; and debts are forgotten where too many have some.
func (l *line) forget() {
	idle := l.waiting == 0 && l.running == 0
	if idle {
		l.clock = 0
	}
	crowded := len(l.parts) > maxParts
	l.parts = slices.DeleteFunc(l.parts, func(p *line) bool {
		return p.waiting == 0 && p.running == 0 && (idle || crowded || p.used <= l.clock)
	})
}
