package scheduler

import (
	"slices"
	"strings"
)

// Stats returns the current statistics.
func (s *Scheduler) Stats() Stats {
	st := Stats{
		Items: s.added, ItemsDone: s.done, Bytes: s.addedBytes, BytesDone: s.doneBytes,
		InFlight: s.inFlight, Verifying: s.verifying, MemoryBytes: int64(s.used),
		Asked: s.asked, Refetched: s.refetched, Rejected: s.rejected, WastedBytes: s.wasted,
		Peers: make([]PeerStats, 0, len(s.peers)),
	}
	for _, p := range s.peers {
		if p.connected && p.proven {
			st.Rate += p.speed.rate
		}
		st.Peers = append(st.Peers, PeerStats{
			ID: p.id, State: s.state(p), Rate: p.speed.rate, RoundTrip: p.speed.rtt, InFlight: len(p.flying),
			Verified: p.verified, VerifiedBytes: p.verifiedBytes, WastedBytes: p.wasted,
		})
	}
	slices.SortFunc(st.Peers, func(a, b PeerStats) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return st
}

func (s *Scheduler) state(p *peer) PeerState {
	switch {
	case p.banned:
		return StateBanned
	case !p.connected:
		return StateDown
	case p.late > 0:
		return StateLate
	case s.now < p.until:
		return StateWaiting
	case p.proven:
		return StateProven
	}
	return StateNew
}
