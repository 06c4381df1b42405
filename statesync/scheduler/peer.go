package scheduler

import (
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
	groups    []*group   // by id
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

func (p *peer) has(g *group) bool {
	_, ok := slices.BinarySearchFunc(p.groups, g.id, func(g *group, id Group) int { return int(int64(g.id) - int64(id)) })
	return ok
}

func (p *peer) holds(it *item) bool {
	return slices.ContainsFunc(it.copies, func(r *request) bool { return r.peer == p })
}

// trusted reports whether the last that was heard of the peer was true. One that is not trusted has
// one request at a time and comes after those that are; else a few peers that once told the truth,
// and take turns in being slow, could keep the others out.
func (p *peer) trusted() bool { return p.proven && p.failures == 0 }

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
	p.connected = false
	i, _ := slices.BinarySearchFunc(s.connected, p.id, byPeerID)
	s.connected = slices.Delete(s.connected, i, i+1)
	s.peerHas(p, nil)
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

// peerHas replaces the groups of a peer.
func (s *Scheduler) peerHas(p *peer, ids []Group) {
	for _, g := range p.groups {
		g.holders--
		s.release(g)
	}
	p.groups = nil
	ids = slices.Clone(ids)
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		g := s.group(id)
		g.holders++
		p.groups = append(p.groups, g)
	}
}

// gone notes that a peer no longer has a group.
func (s *Scheduler) gone(p *peer, g *group) {
	if i := slices.Index(p.groups, g); i >= 0 {
		p.groups = slices.Delete(p.groups, i, i+1)
		g.holders--
		s.release(g)
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
	case len(p.flying) == 0 && (p.proven || p.verifying == 0):
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
