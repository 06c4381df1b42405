package scheduler

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/starling-kv/starling/internal/backoff"
)

// peer is the state of a peer, connected or not.
type peer struct {
	id        PeerID
	connected bool
	banned    bool
	proven    bool
	doubted   bool       // see Doubt; false while disconnected
	groups    []*holding // sorted by group ID
	flying    []*request // in order of sending
	remaining uint64     // bytes of flying that have not arrived yet
	late      int        // number of late requests in flying
	verifying int
	speed     speed
	heard     time.Duration // when its last byte arrived
	asked     RequestID     // its last request

	failures int           // since the last verified item
	timeouts int           // failures that were requests given up
	struck   time.Duration // when the last failure was counted
	until    time.Duration // not asked before this time
	timer    timer         // runs until then

	verified      int
	verifiedBytes uint64
	wasted        uint64
	ahead         uint64 // scratch of the end game
	stalls        bool   // scratch of the end game
}

// maxLost limits the remembered disconnected peers: a Byzantine peer can create any number of
// identities.
const maxLost = 1024

func (p *peer) holds(it *item) bool {
	return slices.ContainsFunc(it.copies, func(r *request) bool { return r.peer == p })
}

// trusted reports whether the peer's last outcome was good. An untrusted peer has one request at a
// time and comes after the trusted ones. Otherwise a few peers that once answered correctly and
// take turns in being slow could keep the others out.
func (p *peer) trusted() bool { return p.proven && p.failures == 0 && !p.doubted }

// active returns a peer, and whether it is connected.
func (s *Scheduler) active(id PeerID) (*peer, bool) {
	p := s.peers[id]
	return p, p != nil && p.connected
}

func byPeerID(p *peer, id PeerID) int { return strings.Compare(string(p.id), string(id)) }

func (s *Scheduler) peerUp(id PeerID) {
	p := s.peers[id]
	switch {
	case p == nil:
		p = &peer{id: id}
		p.timer.peer = p
		s.peers[id] = p
	case p.connected || p.banned:
		return
	default:
		s.lost = slices.DeleteFunc(s.lost, func(l *peer) bool { return l == p })
	}
	p.connected = true
	i, _ := slices.BinarySearchFunc(s.connected, id, byPeerID)
	s.connected = slices.Insert(s.connected, i, p)
	s.refKnown = false
}

func (s *Scheduler) peerDown(id PeerID) {
	p := s.peers[id]
	if p == nil {
		return
	}
	if !p.connected {
		return
	}
	if len(p.flying) > 0 {
		s.strike(p, p.flying[len(p.flying)-1].asked)
	}
	s.disconnect(p)
}

// disconnect removes a peer's claims and cancels its requests in flight.
func (s *Scheduler) disconnect(p *peer) {
	p.connected, p.doubted = false, false
	i, _ := slices.BinarySearchFunc(s.connected, p.id, byPeerID)
	s.connected = slices.Delete(s.connected, i, i+1)
	s.peerHas(p, nil, nil)
	for len(p.flying) > 0 {
		s.cancel(p.flying[0])
	}
	s.refKnown = false
	s.lost = append(s.lost, p)
	if len(s.lost) > maxLost {
		s.stopTimer(&s.lost[0].timer)
		delete(s.peers, s.lost[0].id)
		s.lost = slices.Delete(s.lost, 0, 1)
	}
}

// peerHas replaces a peer's claims. If it claims a group and a part of the same group, it has the
// whole group.
func (s *Scheduler) peerHas(p *peer, groups []Group, parts []Part) {
	before := p.groups
	p.groups = make([]*holding, 0, len(groups)+len(parts))
	for _, id := range groups {
		p.groups = append(p.groups, &holding{group: s.group(id)})
	}
	for _, part := range parts {
		if len(part.Spans) > 0 {
			p.groups = append(p.groups, &holding{group: s.group(part.Group), spans: slices.Clone(part.Spans)})
		}
	}
	slices.SortStableFunc(p.groups, func(a, b *holding) int { return cmp.Compare(a.id, b.id) })
	p.groups = slices.CompactFunc(p.groups, func(a, b *holding) bool { return a.id == b.id })
	for _, h := range p.groups {
		s.hold(h)
	}
	for _, h := range before { // last, so that indexes that remain in use are not rebuilt
		s.let(h)
	}
}

func (s *Scheduler) hold(h *holding) {
	h.holders++
	if h.spans == nil {
		return
	}
	if h.parts++; h.parts == 1 {
		h.index = newIndex(h.group)
	}
}

func (s *Scheduler) let(h *holding) {
	h.holders--
	if h.spans != nil {
		if h.parts--; h.parts == 0 {
			h.index = nil
		}
	}
	s.release(h.group)
}

// gone records that a peer no longer has a group.
func (s *Scheduler) gone(p *peer, g *group) {
	if i, ok := slices.BinarySearchFunc(p.groups, g.id, byHeldID); ok {
		s.let(p.groups[i])
		p.groups = slices.Delete(p.groups, i, i+1)
	}
}

// strike counts the failure of a request that was sent at the given time, and the peer is not asked
// for a while. Requests sent at or before the last failure do not count again: sixteen requests
// lost at once are one failure.
func (s *Scheduler) strike(p *peer, asked time.Duration) (counted bool) {
	if p.failures > 0 && asked <= p.struck {
		return false
	}
	p.failures++
	p.struck = s.now
	p.until = s.now + backoff.Doubled(backOff, p.failures-1, maxBackOff)
	s.startTimer(&p.timer, p.until)
	return true
}

// ban excludes a peer permanently.
func (s *Scheduler) ban(p *peer, reason string) {
	s.rejected++
	if p.banned {
		return
	}
	p.banned, p.proven = true, false
	s.do(Ban{p.id, reason})
	if p.connected {
		s.disconnect(p)
	}
}

// room reports whether a peer may be asked for more.
func (s *Scheduler) room(p *peer) bool {
	switch {
	case !p.connected || p.late > 0 || s.now < p.until || s.behind():
		return false
	case len(p.flying) == 0 && (p.proven && !p.doubted || p.verifying == 0):
		return true
	}
	return p.trusted() && len(p.flying) < s.limits.perPeer && p.remaining < p.speed.window() && !s.overdue(p.flying[0])
}

// behind reports whether answers arrive faster than they are verified and written: more requests
// would only occupy memory.
func (s *Scheduler) behind() bool { return s.verifying > s.limits.atHand && s.unverified > atHandBytes }

// overdue reports that a request of a proven peer takes much longer than its earlier ones: its line
// has become slower, or it withholds the answer.
func (s *Scheduler) overdue(r *request) bool {
	return s.now-r.asked > 4*(r.peer.speed.rtt+timeFor(r.queue, r.peer.speed.rate))+horizon
}

// took returns how long a proven peer would take for n more bytes.
func (p *peer) took(n uint64) time.Duration {
	return p.speed.rtt + timeFor(p.remaining+n, p.speed.rate)
}

// reference returns the median rate and round trip of the connected proven peers, which a peer of
// unknown speed is compared with. A Byzantine peer cannot influence it without sending valid items,
// and a few cannot shift it far.
func (s *Scheduler) reference() (rate uint64, rtt time.Duration, ok bool) {
	if !s.refKnown {
		s.refKnown, s.refRate, s.refRTT = true, 0, 0
		rates, rtts := s.rates[:0], s.rtts[:0]
		for _, p := range s.connected {
			if p.proven {
				rates, rtts = append(rates, p.speed.rate), append(rtts, p.speed.rtt)
			}
		}
		if n := len(rates); n > 0 {
			slices.Sort(rates)
			slices.Sort(rtts)
			s.refRate, s.refRTT = rates[n/2], rtts[n/2]
		}
		s.rates, s.rtts = rates, rtts
	}
	return s.refRate, s.refRTT, s.refRate > 0
}
