package scheduler

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// peer is what is known of a peer, connected or not.
type peer struct {
	id        PeerID
	connected bool
	banned    bool
	proven    bool
	doubted   bool       // see Doubt; false while it is not connected
	groups    []*holding // by id of the group
	flying    []*request // in the order asked
	remaining uint64     // bytes of these that have not come yet
	late      int        // of flying, those that are late
	verifying int
	speed     speed
	heard     time.Duration // when its last byte came
	asked     RequestID     // its last request

	failures int           // since the last verified item
	timeouts int           // requests given up, of these failures
	struck   time.Duration // when the last failure was counted
	until    time.Duration // when it is no longer left alone
	timer    timer         // runs until then

	verified      int
	verifiedBytes uint64
	wasted        uint64
	ahead         uint64 // scratch of the end game
	stalls        bool   // likewise
}

// maxLost is the limit of peers that are remembered although they are not connected: a liar can
// make as many keys as it likes.
const maxLost = 1024

func (p *peer) holds(it *item) bool {
	return slices.ContainsFunc(it.copies, func(r *request) bool { return r.peer == p })
}

// trusted reports whether the last that was heard of the peer was true. One that is not trusted has
// one request at a time and comes after those that are; else a few peers that once told the truth,
// and take turns in being slow, could keep the others out.
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

// disconnect forgets what a peer has and cancels its requests in flight.
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

// peerHas replaces what a peer has. A group that it says to have all of and a part, it has all of.
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
	for _, h := range before { // last, so that no index is made anew
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

// gone notes that a peer no longer has a group.
func (s *Scheduler) gone(p *peer, g *group) {
	if i, ok := slices.BinarySearchFunc(p.groups, g.id, byHeldID); ok {
		s.let(p.groups[i])
		p.groups = slices.Delete(p.groups, i, i+1)
	}
}

// strike counts a failure of a request that was asked at that time, and leaves the peer alone for a
// while. What was asked before the last failure counts with that: sixteen requests that are lost at
// once are one failure.
func (s *Scheduler) strike(p *peer, asked time.Duration) (counted bool) {
	if p.failures > 0 && asked < p.struck {
		return false
	}
	p.failures++
	p.struck = s.now
	p.until = s.now + doubled(backOff, p.failures-1, maxBackOff)
	s.startTimer(&p.timer, p.until)
	return true
}

// ban excludes a peer for good.
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

// room reports whether a peer is to be asked for more.
func (s *Scheduler) room(p *peer) bool {
	switch {
	case !p.connected || p.late > 0 || s.now < p.until || s.behind():
		return false
	case len(p.flying) == 0 && (p.proven && !p.doubted || p.verifying == 0):
		return true
	}
	return p.trusted() && len(p.flying) < s.limits.perPeer && p.remaining < p.speed.window() && !s.overdue(p.flying[0])
}

// behind reports whether answers come faster than they are verified and written: what is asked for
// then would only take memory until its turn.
func (s *Scheduler) behind() bool { return s.verifying > s.limits.atHand && s.unverified > atHandBytes }

// overdue reports that a request of a proven peer takes much longer than what the peer did before:
// its line has become worse, or it withholds the answer.
func (s *Scheduler) overdue(r *request) bool {
	return s.now-r.asked > 4*(r.peer.speed.rtt+timeFor(r.queue, r.peer.speed.rate))+horizon
}

// took returns how long a proven peer would take for n more bytes.
func (p *peer) took(n uint64) time.Duration {
	return p.speed.rtt + timeFor(p.remaining+n, p.speed.rate)
}

// reference returns rate and round trip of the median of the connected proven peers, which a peer
// of unknown speed is compared with. A liar cannot move it without giving true items, and a few
// cannot move it far.
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
