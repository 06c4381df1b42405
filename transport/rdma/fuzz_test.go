package rdma

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport/rdma/internal/verbs"
)

func FuzzProposal(f *testing.F) {
	f.Add(proposal{verbs.Endpoint{GID: verbs.GID{1}, LID: 2, QPN: 3, PSN: 4, MTU: 1024}, nonce{5}}.encode())
	f.Add([]byte{version})
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, err := decodeProposal(b); err == nil {
			require.Equal(t, b, p.encode(), "one encoding")
			require.NoError(t, p.endpoint.Validate())
		}
	})
}

func FuzzGreeting(f *testing.F) {
	f.Add(greeting{nonce{1}, region{2, 3, 4}}.encode())
	f.Add([]byte{version})
	f.Fuzz(func(t *testing.T, b []byte) {
		if g, err := decodeGreeting(b); err == nil {
			require.Equal(t, b, g.encode(), "one encoding")
		}
	})
}

// FuzzImmediates lets a peer write arbitrary immediates to the lent memory.
func FuzzImmediates(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 0, 0, 9})
	f.Fuzz(func(t *testing.T, script []byte) {
		fabric := &Fabric{o: Options{bounds: bounds{units: 8, stall: patience}}}
		s := &lending{lender: &lender{fabric: fabric}, path: &path{fabric: fabric}, memory: make([]byte, 8*unit)}
		s.mu.places, s.mu.slots = newPlaces(8), make(map[int]*slot)
		got := map[*slot]int{}
		var all []*slot
		for len(script) >= 4 {
			a, b, c, d := script[0], script[1], script[2], script[3]
			script = script[4:]
			switch a % 4 {
			case 0:
				n := int(b)<<12 | int(c)
				if lent := s.lend(n, nil, nil); lent != nil {
					one := lent.(*slot)
					one.landed = func(piece []byte, _ bool) error {
						if got[one] += len(piece); got[one] > n {
							t.Error("more than was lent")
						}
						return nil
					}
					all = append(all, one)
				}
			case 1:
				if s.landed(uint32(b)<<31|uint32(c%9)<<16|uint32(d%9), int(b)<<11|int(c)) != nil {
					return
				}
			case 2:
				if len(all) > 0 {
					one := all[int(b)%len(all)]
					s.mu.Lock()
					if !one.ended {
						one.ended, one.total = true, int(c)-1
						if s.settle(one) != nil {
							s.mu.Unlock()
							return
						}
					}
					s.mu.Unlock()
				}
			}
		}
		taken := 0
		for _, one := range s.mu.slots {
			taken += unitsOf(one.length)
			if one.stall != nil {
				one.stall.Stop()
			}
		}
		for _, is := range s.mu.places.taken {
			if is {
				taken--
			}
		}
		require.Zero(t, taken, "no unit leaks")
	})
}
