package tcp

import (
	"slices"
	"time"
)

// crowd is who has the places of a kind, and decides who makes room where all are taken. No number
// of connections of one host, or of one network, keeps others out; nor do connections that ask
// nothing.
type crowd struct {
	places  int
	perHost int
	in      []*member      // the oldest first
	of      map[string]int // how many of them a network has
}

// member has a place. Nothing of it changes while it does.
type member struct {
	from  origin
	named bool // the operator named it: it never makes room
	// spare is how long it could have been missed, 0 or less: it is needed.
	spare func(now time.Time) time.Duration
	drop  func() // closes it, without waiting
}

// enter gives a newcomer a place; a member may have to make room. It returns false if there is
// none.
func (c *crowd) enter(m *member, now time.Time) bool {
	switch {
	case c.of[m.from.host()] >= c.perHost && !m.named:
		host := m.from.host()
		if !c.expel(c.sparest(now, func(o *member) bool { return o.from.host() == host }), now, 0) {
			return false
		}
	case len(c.in) >= c.places:
		least := time.Duration(0)
		if m.named {
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

// never is less than any member's spare.
const never = time.Duration(-1 << 63)

// expel ends a member, if there is one and it has more to spare than that.
func (c *crowd) expel(m *member, now time.Time, than time.Duration) bool {
	if m == nil || m.spare(now) <= than {
		return false
	}
	c.leave(m)
	m.drop()
	return true
}

func everybody(*member) bool { return true }

// most returns a member of the network that has most members, if those are at least two more than
// the newcomer's network of the same width has. The widest networks are compared first.
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

// fullest returns the network of a width that has most members, of those with a member to which a
// condition applies and that can make room.
func (c *crowd) fullest(width int, of func(*member) bool) (fullest string) {
	for _, m := range c.in {
		if net := m.from.at(width); !m.named && of(m) && c.of[net] > c.of[fullest] {
			fullest = net
		}
	}
	return fullest
}

// sparest returns the member, of those to which a condition applies, that has most to spare; of
// equals the newest. nil: there is none that can make room.
func (c *crowd) sparest(now time.Time, of func(*member) bool) (sparest *member) {
	for _, m := range slices.Backward(c.in) {
		if !m.named && of(m) && (sparest == nil || m.spare(now) > sparest.spare(now)) {
			sparest = m
		}
	}
	return sparest
}

// leave gives a place back, once.
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
