package tcp

import (
	"context"
	"slices"
	"sync"
)

// maxParts is the number of parts of a line above which all parts that neither wait nor run are
// dropped, whatever they have used.
const maxParts = 512

// turns shares a few places among requests:
//
//	wait ──► waiting ──(a place is free, and its turn has come)──► running ──done──►
//
// The next place goes to the network with the least use, and within it to the narrower network, the
// host and the connection with the least use. Requests of one connection keep their order. The use
// of a request is known when it is done, in bytes or in equivalent work. A part that starts to wait
// begins with the use of the part that had the last turn, so idle time does not accumulate
// (start-time fair queueing: Goyal, Vin and Cheng, SIGCOMM 1996).
type turns struct {
	least int64 // minimum use of a request, charged when it begins
	mu    struct {
		sync.Mutex
		free int // free places
		all  line
	}
}

// line is a network, host or connection, with those of its parts that wait, run or have used more
// than their share. Guarded by turns.mu.
type line struct {
	key     any
	used    int64
	waiting int
	running int
	clock   int64   // use of the part that had the last turn, before that turn
	parts   []*line // in order of arrival
	calls   []*turn // of a connection: waiting requests, in order
}

// turn is the state of a request. Guarded by turns.mu.
type turn struct {
	way   []*line       // lines from below turns.all down to the connection
	begun chan struct{} // closed when the request may run
}

func newTurns(places int, least int64) *turns {
	t := &turns{least: least}
	t.mu.free = places
	return t
}

// wait waits until a request may run. conn is any key that identifies the connection. The caller
// must then call done. It fails with ctx's error.
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

// abandon removes a waiting request; false: it may run already.
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

// done returns the place of a request. used is its use beyond the least.
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

// next gives free places to the requests whose turn it is. The caller holds t.mu.
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

// turn charges and returns the waiting part with the least use; the oldest one if several are
// equal.
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

// part returns the part with a key. A new part, or one that starts to wait, begins with the use of
// the part that had the last turn.
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

// forget drops the parts on the path of a request that no longer have any effect.
func (t *turns) forget(r *turn) {
	t.mu.all.forget()
	for _, l := range r.way {
		l.forget()
	}
}

// forget drops parts that neither wait nor run and have used no more than a new one would have. If
// no part waits or runs, it drops all of them. If there are too many parts, it also drops those
// that have used more.
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
