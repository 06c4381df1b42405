package hedge

import (
	"slices"
	"time"
)

// phase is the state of a candidate.
type phase int

const (
	queued  phase = iota // in Machine.queue
	asked                // in Machine.out
	waiting              // in group.waiting: answered, its proof has not begun
	proving              // in Machine.proving
	over
)

type candidate struct {
	id              ID
	phase           phase
	place           bool          // EachSlow: its question counts towards Policy.Start
	slowAt          time.Duration // when that question gives up its slot
	since           time.Duration // when it was last asked
	moved, before   int64         // ByRate: total bytes received, and before the current question
	parked          int           // number of times
	group           *group        // group of its answer
	prompt, trusted bool          // see Standing
}

// group holds the candidates that gave equal answers.
type group struct {
	answer  string
	waiting []*candidate // in order of arrival
	proving int
}

// Machine decides which candidates to ask and which answers to prove. Create it with New. It must
// not be used concurrently.
type Machine struct {
	policy Policy
	now    time.Duration

	candidates map[ID]*candidate
	queue      []*candidate // in order of Add
	out        []*candidate // in order of asking
	proving    []*candidate
	groups     []*group // in order of the first answer

	allowed int           // questions that the pace allows now
	asked   int           // total number of questions asked
	beat    time.Duration // ByRate, Doubling: when time may allow the next question
	second  time.Duration // next multiple of After, when another proof of equal answers begins

	won      *group        // group of the answer proved first, or given by Known
	deadline time.Duration // once won: when Compare has passed
	overdue  bool          // Compare has passed
	settled  bool
	ended    bool
	actions  []Action
}

// New returns a Machine at time 0.
func New(policy Policy) *Machine {
	return &Machine{policy: policy, candidates: map[ID]*candidate{}, allowed: policy.Start, beat: policy.After, second: policy.After}
}

// Step takes an event and returns the resulting actions, in order. now is the time since New and
// must not decrease. The caller owns the returned slice. After End, Step returns nothing.
func (m *Machine) Step(now time.Duration, e Event) []Action {
	m.actions = nil
	m.now = max(m.now, now)
	if !m.ended {
		m.handle(e)
	}
	if !m.ended {
		m.due() // after the event, so that an answer that arrives just in time is not late
	}
	if !m.ended {
		m.ask()
		m.conclude()
	}
	return m.actions
}

// Next returns the time by which Step must be called with Tick if no event comes earlier. ok is
// false if there is no such time.
func (m *Machine) Next() (at time.Duration, ok bool) {
	earliest := func(t time.Duration) {
		if !ok || t < at {
			at, ok = t, true
		}
	}
	if m.ended {
		return 0, false
	}
	if m.won != nil && !m.overdue {
		earliest(m.deadline)
	}
	if m.won == nil && slices.ContainsFunc(m.groups, func(g *group) bool { return len(g.waiting) > 0 }) {
		earliest(m.second)
	}
	if len(m.queue) == 0 {
		return at, ok
	}
	if m.policy.Pace != EachSlow {
		earliest(m.beat)
		return at, ok
	}
	for _, c := range m.out {
		if c.place {
			earliest(c.slowAt)
		}
	}
	return at, ok
}

func (m *Machine) act(a Action) { m.actions = append(m.actions, a) }

// due performs everything that is due.
func (m *Machine) due() {
	m.onTime()
	if m.now >= m.second {
		for m.second <= m.now {
			m.second += m.policy.After
		}
		for _, g := range m.groups {
			if m.won == nil && len(g.waiting) > 0 {
				m.prove(g)
			}
		}
	}
	if m.won != nil && !m.overdue && m.now >= m.deadline {
		m.overdue = true
		m.act(Overdue{Asked: ids(m.out), Proving: ids(m.proving)})
		m.settle()
	}
}

func (m *Machine) handle(e Event) {
	switch e := e.(type) {
	case Add:
		for _, id := range e.IDs {
			if m.candidates[id] == nil {
				c := &candidate{id: id, prompt: true, trusted: true}
				m.candidates[id] = c
				m.queue = append(m.queue, c)
			}
		}
	case Known:
		if m.won == nil {
			m.win(m.groupOf(e.Answer))
		}
	case Answered:
		if c := m.take(e.ID, asked); c != nil {
			m.onEnd(c, false)
			m.heard(c, e)
		}
	case Failed:
		if c := m.take(e.ID, asked); c != nil {
			m.onEnd(c, true)
		}
	case Proved:
		if c := m.take(e.ID, proving); c != nil && m.won == nil {
			m.win(c.group)
		}
	case Refuted:
		if c := m.take(e.ID, proving); c != nil {
			m.onEnd(c, true)
			if m.won == nil && len(c.group.waiting) > 0 {
				m.prove(c.group)
			}
		}
	case Standing:
		if c := m.candidates[e.ID]; c != nil {
			c.prompt, c.trusted = e.Prompt, e.Trusted
		}
	case Moved:
		if c := m.candidates[e.ID]; c != nil {
			c.moved = max(c.moved, e.Bytes)
		}
	case Stop:
		m.end()
	case Tick:
	}
}

// take removes a candidate from the list of its phase. It returns nil if the candidate is unknown
// or in another phase.
func (m *Machine) take(id ID, from phase) *candidate {
	c := m.candidates[id]
	if c == nil || c.phase != from {
		return nil
	}
	list := &m.out
	if from == proving {
		list = &m.proving
		c.group.proving--
	}
	i := slices.Index(*list, c)
	*list = slices.Delete(*list, i, i+1)
	c.phase = over
	return c
}

// heard adds an answer to the group of equal ones.
func (m *Machine) heard(c *candidate, e Answered) {
	g := m.groupOf(e.Answer)
	if g == m.won {
		return // it confirms the winner
	}
	if e.Proved {
		m.act(Accept{c.id})
		if m.won == nil {
			m.win(g)
		}
		return
	}
	c.group, c.phase = g, waiting
	g.waiting = append(g.waiting, c)
	if m.won != nil || g.proving == 0 {
		m.prove(g)
	}
}

func (m *Machine) groupOf(answer string) *group {
	for _, g := range m.groups {
		if answer != "" && g.answer == answer {
			return g
		}
	}
	g := &group{answer: answer}
	m.groups = append(m.groups, g)
	return g
}

// prove starts the proof of the next waiting answer of g.
func (m *Machine) prove(g *group) {
	c := g.waiting[0]
	g.waiting = g.waiting[1:]
	g.proving++
	c.phase = proving
	m.proving = append(m.proving, c)
	m.act(Prove{c.id})
}

// win makes g the winner. Answers that wait in g confirm it, and all other answers are examined.
func (m *Machine) win(g *group) {
	m.won = g
	for _, c := range g.waiting {
		c.phase = over
	}
	g.waiting = nil
	if m.policy.Compare == 0 {
		m.settle()
		if !m.ended {
			m.end()
		}
		return
	}
	m.deadline = m.now + m.policy.Compare
	for _, other := range m.groups {
		for len(other.waiting) > 0 {
			m.prove(other)
		}
	}
}

// conclude settles the search if no candidate is worth waiting for, and ends it if nothing is left
// to do.
func (m *Machine) conclude() {
	if m.won != nil && !m.awaited() {
		m.settle()
	}
	// Without proofs in progress, no answer waits for one either.
	if !m.ended && len(m.queue) == 0 && len(m.out) == 0 && len(m.proving) == 0 {
		m.end()
	}
}

// awaited reports whether any candidate is worth waiting for after the first proof.
func (m *Machine) awaited() bool {
	prompt := func(c *candidate) bool { return c.prompt }
	return slices.ContainsFunc(m.queue, prompt) || slices.ContainsFunc(m.out, prompt) ||
		slices.ContainsFunc(m.proving, func(c *candidate) bool { return c.trusted })
}

func (m *Machine) settle() {
	if m.settled {
		return
	}
	m.settled = true
	m.act(Settled{})
	if !m.policy.Linger {
		m.end()
	}
}

// end cancels everything in flight.
func (m *Machine) end() {
	m.ended = true
	for _, c := range slices.Concat(m.out, m.proving) {
		m.act(Cancel{c.id})
	}
	m.act(End{})
}

func ids(of []*candidate) (list []ID) {
	for _, c := range of {
		list = append(list, c.id)
	}
	return list
}
