package hedge

import (
	"cmp"
	"slices"
	"time"
)

// This file decides when another candidate is asked. Machine.allowed counts the questions that may
// be asked now: onTime and onEnd add to it, and ask spends it.

// maxDoublings keeps turns within the range of a time.Duration.
const maxDoublings = 16

// onTime adds the questions that elapsed time allows.
func (m *Machine) onTime() {
	switch m.policy.Pace {
	case EachSlow:
		for _, c := range m.out {
			if c.place && m.now >= c.slowAt {
				m.freePlace(c)
			}
		}
	case ByRate:
		if m.now < m.beat {
			return
		}
		m.beat = m.now + m.policy.After
		if !slices.ContainsFunc(m.out, m.well) {
			m.allowed++
			m.makeRoom()
		}
	case Doubling:
		if m.now < m.beat {
			return
		}
		m.allowed += m.asked
		for m.beat <= m.now {
			m.beat += m.policy.After
		}
	}
}

// onEnd adds the question that the end of another one allows. failed reports whether that question,
// or the proof of its answer, failed.
func (m *Machine) onEnd(c *candidate, failed bool) {
	switch {
	case m.policy.Pace == EachSlow:
		m.freePlace(c)
	case failed:
		m.allowed++
		if m.policy.Pace == ByRate {
			m.beat = m.now + m.policy.After
		}
	}
}

func (m *Machine) freePlace(c *candidate) {
	if c.place {
		c.place = false
		m.allowed++
	}
}

// well reports whether a question is not slow, by rate. Half of After is reserved for the round
// trip to the candidate.
func (m *Machine) well(c *candidate) bool {
	age := m.now - c.since
	due := int64((age-m.policy.After/2)/time.Millisecond) * m.policy.Rate / 1000
	return age < m.policy.After || c.moved-c.before >= max(due, 1)
}

// rate returns the bytes per second received since a question was asked.
func (m *Machine) rate(c *candidate) int64 {
	return (c.moved - c.before) * 1000 / max(int64((m.now-c.since)/time.Millisecond), 1)
}

// makeRoom parks a question if all slots are taken and a candidate waits for one.
func (m *Machine) makeRoom() {
	if len(m.queue) == 0 || len(m.out) < m.policy.Most {
		return
	}
	byRate := func(a, b *candidate) int { return cmp.Compare(m.rate(a), m.rate(b)) }
	fastest := slices.MaxFunc(m.out, byRate)
	over := slices.DeleteFunc(slices.Clone(m.out), func(c *candidate) bool {
		return c == fastest || m.now-c.since < m.policy.Turn<<min(c.parked, maxDoublings)
	})
	if len(over) == 0 {
		return
	}
	c := m.take(slices.MinFunc(over, byRate).id, asked) // among equals, the one asked first
	c.phase = queued
	c.parked++
	m.queue = append(m.queue, c)
	m.act(Park{c.id})
}

// ask asks as many candidates as the pace and Policy.Most allow.
func (m *Machine) ask() {
	if len(m.out) == 0 && len(m.proving) == 0 && m.allowed == 0 {
		m.allowed = 1 // otherwise the search would stall
	}
	for len(m.queue) > 0 && m.allowed > 0 && len(m.out) < m.policy.Most {
		c := m.queue[0]
		m.queue = m.queue[1:]
		m.allowed--
		m.asked++
		c.phase, c.place, c.slowAt = asked, true, m.now+m.policy.After
		c.since, c.before = m.now, c.moved
		m.out = append(m.out, c)
		if m.policy.Pace == ByRate {
			m.beat = m.now + m.policy.After
		}
		m.act(Ask{c.id})
	}
	if m.policy.Pace != EachSlow {
		m.allowed = 0 // unused permission lapses; only a free slot is kept
	}
}
