package slots

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// No number of clients keeps a further one from a slot before all are taken, and no client has
// more than half.
func TestClientsLeaveSlots(t *testing.T) {
	const most = 64
	var s Slots[string]
	var given []func()
	all := func(client string) (n int) {
		for {
			release := s.Take(client, most)
			if release == nil {
				return n
			}
			given = append(given, release)
			n++
		}
	}
	require.Equal(t, most/2, all("a"))
	require.Equal(t, most/4, all("b"))
	require.Nil(t, s.Take("a", most))
	require.Equal(t, most/8, all(""))
	require.Less(t, s.Taken(), most)
	for _, client := range []string{"c", "d", "e", "f"} {
		all(client)
	}
	require.Equal(t, most, s.Taken())
	require.Nil(t, s.TakeAny(most))
	require.NotNil(t, s.TakeAny(most+1))
	for _, release := range given {
		release()
	}
	require.Equal(t, 1, s.Taken())
	require.Empty(t, s.clients)
}

// Freed slots can be taken again, and clients without a call are forgotten.
func TestSlotsAreFreed(t *testing.T) {
	const most = 1024
	rng := seeds.Rand(t)
	var s Slots[int]
	var held []func()
	for range 20_000 {
		if n := len(held); n > 0 && rng.IntN(3) == 0 {
			i := rng.IntN(n)
			held[i]()
			held[i], held = held[n-1], held[:n-1]
			continue
		}
		take := func() func() { return s.Take(rng.IntN(20), most) }
		if rng.IntN(10) == 0 {
			take = func() func() { return s.TakeAny(most) }
		}
		if release := take(); release != nil {
			held = append(held, release)
		}
		require.Equal(t, len(held), s.Taken())
	}
	require.Greater(t, len(held), most/2)
	for _, release := range held {
		release()
	}
	require.Zero(t, s.Taken())
	require.Empty(t, s.clients)
}
