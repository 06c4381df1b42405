package tcp

import (
	"slices"
	"time"
)

// crowd is a set of connections that hold slots of one kind. When all slots are taken, it decides
// which connection to close. Neither many connections of one host or network, nor connections
// without requests, can lock out others.
type crowd struct {
	places  int
	perHost int
	in      []*member      // oldest first
	of      map[string]int // number of members by network
}

// member is a connection that holds a slot. Its fields do not change meanwhile.
type member struct {
	from origin
	// isNamed reports whether the operator names the peer now: then the connection is never closed
	// to make room. nil: it never does.
	isNamed func() bool
	// spare returns how long the connection could have been closed without loss; 0 or less: it is
	// needed.
	spare func(now time.Time) time.Duration
	drop  func() // closes it, without waiting
}

func (m *member) named() bool { return m.isNamed != nil && m.isNamed() }

// enter gives a newcomer a slot, and closes a member if necessary. It returns false if there is no
// slot.
func (c *crowd) enter(m *member, now time.Time) bool {
	switch {
	case c.of[m.from.host()] >= c.perHost && !m.named():
		host := m.from.host()
		if !c.expel(c.sparest(now, func(o *member) bool { return o.from.host() == host }), now, 0) {
			return false
		}
	case len(c.in) >= c.places:
		least := time.Duration(0)
		if m.named() {
			least = never
		}
		if !c.expel(c.most(m.from, now), now, never) && !c.expel(c.sparest(now, everybody), now, least) {
			return false
		}
	}
	if c.of == nil {
		c.of = make(map[string]int)
	}
	c.in = append(c.in, m)
	for _, net := range m.from.nets {
		c.of[net]++
	}
	return true
}

// never is less than the spare of any member.
const never = time.Duration(-1 << 63)

// expel closes a member if it is not nil and its spare is greater than than.
func (c *crowd) expel(m *member, now time.Time, than time.Duration) bool {
	if m == nil || m.spare(now) <= than {
		return false
	}
	c.leave(m)
	m.drop()
	return true
}

func everybody(*member) bool { return true }

// most returns a member of the network with the most members, if that network has at least two more
// than the newcomer's network of the same width. Wider networks are compared first.
func (c *crowd) most(newcomer origin, now time.Time) *member {
	for width := range widths {
		net := c.fullest(width, everybody)
		if net == "" || c.of[net] < c.of[newcomer.at(width)]+2 {
			continue
		}
		for narrower := width + 1; narrower < len(widths); narrower++ { // down to a host
			wider := net
			net = c.fullest(narrower, func(m *member) bool { return m.from.at(narrower-1) == wider })
		}
		return c.sparest(now, func(m *member) bool { return m.from.host() == net })
	}
	return nil
}

// fullest returns the network of a width with the most members. Only networks with a member that
// satisfies of and that can be closed count.
func (c *crowd) fullest(width int, of func(*member) bool) (fullest string) {
	for _, m := range c.in {
		if net := m.from.at(width); !m.named() && of(m) && c.of[net] > c.of[fullest] {
			fullest = net
		}
	}
	return fullest
}

// sparest returns the member with the greatest spare, of those that satisfy of; the newest if
// several are equal. nil: none can be closed.
func (c *crowd) sparest(now time.Time, of func(*member) bool) (sparest *member) {
	for _, m := range slices.Backward(c.in) {
		if !m.named() && of(m) && (sparest == nil || m.spare(now) > sparest.spare(now)) {
			sparest = m
		}
	}
	return sparest
}

// leave frees the slot of a member. Further calls have no effect.
func (c *crowd) leave(m *member) {
	at := slices.Index(c.in, m)
	if at < 0 {
		return
	}
	c.in = slices.Delete(c.in, at, at+1)
	for _, net := range m.from.nets {
		if c.of[net]--; c.of[net] == 0 {
			delete(c.of, net)
		}
	}
}
