package hedge

// This file decides when another candidate is asked. Machine.allowed counts the questions that may
// be asked now: onTime and onEnd add to it, and ask spends it.

// onTime adds the questions that the passing of time allows.
func (m *Machine) onTime() {
	switch m.policy.Pace {
	case EachSlow:
		for _, c := range m.out {
			if c.place && m.now >= c.slowAt {
				m.freePlace(c)
			}
		}
	case WhenQuiet:
		if m.now < m.beat {
			return
		}
		if !m.moved || len(m.out) == 0 {
			m.allowed++
		}
		m.quietFrom()
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
		if m.policy.Pace == WhenQuiet {
			m.quietFrom()
		}
	}
}

func (m *Machine) freePlace(c *candidate) {
	if c.place {
		c.place = false
		m.allowed++
	}
}

func (m *Machine) quietFrom() {
	m.moved = false
	m.beat = m.now + m.policy.After
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
		m.out = append(m.out, c)
		if m.policy.Pace == WhenQuiet {
			m.quietFrom()
		}
		m.act(Ask{c.id})
	}
	if m.policy.Pace != EachSlow {
		m.allowed = 0 // unused permission lapses; only a free place is kept
	}
}
