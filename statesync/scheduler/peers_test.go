package scheduler

import (
	"slices"
	"time"
)

// behaviour is a peer's reaction to requests.
type behaviour int

const (
	honest   behaviour = iota
	flapping           // honest, but loses the connection at times
	moody              // honest, but busy or broken off at times
	pruning            // honest, but drops the old group midway and then has the new one

	damaged   // the right length, wrong bytes
	truncated // too short
	oversize  // too long
	swapped   // another item's bytes
	stale     // of an older version: wrong bytes of any length
	loris     // sends some bytes every few seconds
	silent    // never answers
	stopper   // honest until the last item but one, then silent
	turncoat  // honest for a while, then damaged
	sleeper   // honest for a while, then silent
	lagger    // honest for a while, then some bytes every few seconds
	refuser   // always refuses
	breaker   // breaks off midway
	claimer   // claims everything, and answers "gone"
	hopper    // silent, and reconnects all the time
	flooder   // sends unrequested answers
	chameleon // a random one of these each time
	behaviours
)

var names = [behaviours]string{
	"honest", "flapping", "moody", "pruning", "damaged", "truncated", "oversize", "swapped", "stale", "loris", "silent", "stopper",
	"turncoat", "sleeper", "lagger", "refuser", "breaker", "claimer", "hopper", "flooder", "chameleon",
}

type simPeer struct {
	id        PeerID
	is        behaviour
	rate      uint64 // bytes per second
	latency   time.Duration
	groups    []Group
	spans     []Span  // of each of the groups; nil: everything
	told      []Group // groups that it claims, entirely or the spans of them
	loyal     int     // items before it turns
	connected bool
	epoch     int // of the connection
	banned    bool
	open      int // requests sent and not freed
	verified  int
	rejected  int
	busy      bool
	jobs      []*simRequest
}

func (p *simPeer) honest() bool { return p.is <= pruning }

// has returns the peer's claims.
func (p *simPeer) has() PeerHas {
	if p.spans == nil {
		return PeerHas{Peer: p.id, Groups: p.groups}
	}
	e := PeerHas{Peer: p.id}
	for _, g := range p.groups {
		e.Parts = append(e.Parts, Part{g, p.spans})
	}
	return e
}

// covers reports whether the peer claims a place.
func (p *simPeer) covers(at uint32) bool {
	return p.spans == nil || slices.ContainsFunc(p.spans, func(s Span) bool { return s.From <= at && at < s.To })
}

// life is what a peer does without being asked.
func (p *simPeer) life(w *world) {
	switch p.is {
	case flapping, hopper:
		w.after(time.Duration(1+w.rng.Int64N(int64(20*time.Second))), func() error {
			if p.banned {
				return nil
			}
			if p.connected {
				if err := w.disconnect(p); err != nil {
					return err
				}
				w.after(time.Duration(w.rng.Int64N(int64(3*time.Second))), func() error { return w.connect(p) })
			}
			p.life(w)
			return nil
		})
	case flooder:
		w.after(time.Duration(1+w.rng.Int64N(int64(time.Second))), func() error {
			if p.banned {
				return nil
			}
			// The caller knows the sender of each request: another peer's answer never gets this
			// far, but an old answer may.
			id := RequestID(1 + w.rng.IntN(w.asks+1))
			if w.reqs[id] != nil || id > w.s.lastRequest {
				id = RequestID(w.rng.Uint64() | 1<<63)
			}
			unasked := []Event{
				Received{id, 1}, Progress{id, 7}, Failed{Request: id, Reason: Gone}, Failed{Request: id, Reason: Lied}, Verified{id},
				Rejected{id, "?"}, p.has(), PeerUp{p.id}, PeerDown{"nobody"}, PeerHas{Peer: "nobody"},
			}
			if err := w.step(unasked[w.rng.IntN(len(unasked))]); err != nil {
				return err
			}
			p.life(w)
			return nil
		})
	case pruning:
		w.after(time.Duration(w.rng.Int64N(int64(10*time.Second))), func() error {
			p.groups = []Group{2}
			// The claims come later.
			w.after(time.Duration(w.rng.Int64N(int64(2*time.Second))), func() error { return w.step(p.has()) })
			return nil
		})
	}
}

func (w *world) connect(p *simPeer) error {
	if p.connected || p.banned {
		return nil
	}
	p.connected = true
	if err := w.step(PeerUp{p.id}); err != nil {
		return err
	}
	return w.step(p.has())
}

func (w *world) disconnect(p *simPeer) error {
	if !p.connected {
		return nil
	}
	p.connected, p.busy, p.jobs = false, false, nil
	p.epoch++
	return w.step(PeerDown{p.id})
}

// take is called when a request reaches the peer.
func (p *simPeer) take(w *world, r *simRequest) error {
	if r.epoch != p.epoch {
		return nil
	}
	p.jobs = append(p.jobs, r)
	p.pump(w)
	return nil
}

// pump starts to answer the next request, if none is being answered.
func (p *simPeer) pump(w *world) {
	for !p.busy && len(p.jobs) > 0 {
		r := p.jobs[0]
		p.jobs = p.jobs[1:]
		if !r.ended {
			p.answer(w, r)
		}
	}
}

// answer determines the answer and sends its first segment.
func (p *simPeer) answer(w *world, r *simRequest) {
	bytes, good, segments, pause := r.item.Bytes, true, w.segments, time.Duration(0)
	if !r.item.Exact {
		bytes -= bytes / 4
	}
	is := p.is
	if is == chameleon {
		is = behaviour(w.rng.IntN(int(chameleon)))
	}
	has := false
	for _, g := range p.groups {
		has = has || g == r.item.Group
	}
	left := len(w.items) - w.s.Stats().ItemsDone
	switch {
	case !has, is == claimer:
		p.say(w, r, Gone)
		return
	case is == refuser:
		p.say(w, r, Refused)
		return
	case is == moody && w.rng.IntN(4) == 0:
		p.say(w, r, Busy)
		return
	case is == silent, is == hopper, is == stopper && left <= 2, is == flooder && p.verified > 3, is == sleeper && p.verified >= p.loyal:
		return // it continues with the next request
	}
	switch is {
	case damaged, stale:
		good = false
		if is == stale && w.rng.IntN(2) == 0 {
			bytes -= w.rng.Uint64N(bytes)
		}
	case truncated:
		good = false
		bytes = w.rng.Uint64N(bytes)
	case oversize:
		good = false
		bytes = r.item.Bytes + 1 + w.rng.Uint64N(1000)
	case swapped:
		good = false
		if other := w.items[1+ItemID(w.rng.Uint64N(uint64(w.lastItem)))]; other.ID != r.item.ID {
			bytes = other.Bytes
		}
	case turncoat:
		good = p.verified < p.loyal
	case loris, lagger:
		if is == lagger && p.verified < p.loyal {
			break
		}
		segments, pause = int(min(bytes, 5000)), time.Duration(1+w.rng.Int64N(int64(4*time.Second)))
	}
	breaks := segments + 1
	if is == breaker || is == moody && w.rng.IntN(10) == 0 {
		breaks = w.rng.IntN(segments + 1)
	}
	p.send(w, r, bytes, good, 1, max(segments, 1), breaks, pause)
}

// say sends a refusal.
func (p *simPeer) say(w *world, r *simRequest, why Reason) {
	w.after(p.latency/2, func() error {
		if r.epoch != p.epoch || r.ended {
			return nil
		}
		return w.fail(r, why)
	})
}

// send sends segment i of n, and then the next.
func (p *simPeer) send(w *world, r *simRequest, bytes uint64, good bool, i, n, breaks int, pause time.Duration) {
	p.busy = true
	part := bytes*uint64(i)/uint64(n) - bytes*uint64(i-1)/uint64(n)
	epoch := p.epoch
	w.after(timeFor(part, p.rate)+pause, func() error {
		switch {
		case epoch != p.epoch:
			return nil
		case i > breaks:
			p.say(w, r, Broken)
		case !r.ended:
			total := bytes * uint64(i) / uint64(n)
			w.after(p.latency/2, func() error { return w.downlink(r, epoch, part, total, i == n, good) })
			if i < n {
				p.send(w, r, bytes, good, i+1, n, breaks, pause)
				return nil
			}
		}
		p.busy = false
		p.pump(w)
		return nil
	})
}

// downlink delivers a segment through the link that all peers share.
func (w *world) downlink(r *simRequest, epoch int, part, total uint64, last, good bool) error {
	arrive := func() error {
		if epoch != r.peer.epoch {
			return nil
		}
		return w.arrive(r, total, last, good)
	}
	if w.downRate == 0 {
		return arrive()
	}
	w.downFree = max(w.now, w.downFree) + timeFor(part, w.downRate)
	w.at(w.downFree, arrive)
	return nil
}
