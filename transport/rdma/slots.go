package rdma

// places allocates the units of lent memory. A slot takes the first free run of adjacent units.
type places struct {
	taken []bool
	last  int // last round
}

func newPlaces(units int) *places { return &places{taken: make([]bool, units)} }

// take reserves n adjacent units and returns the first; false: there is no such run.
func (p *places) take(n int) (first, round int, ok bool) {
	run := 0
	for i, taken := range p.taken {
		if run++; taken {
			run = 0
		}
		if run == n {
			first = i + 1 - n
			for j := range n {
				p.taken[first+j] = true
			}
			p.last = (p.last + 1) % rounds
			return first, p.last, true
		}
	}
	return 0, 0, false
}

func (p *places) giveBack(first, n int) {
	for i := range n {
		p.taken[first+i] = false
	}
}
