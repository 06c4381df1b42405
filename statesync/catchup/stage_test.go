package catchup

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

func TestDecide(t *testing.T) {
	all := func(last int64) Claim { return Claim{First: 1, Last: last} }
	for name, c := range map[string]struct {
		facts Facts
		want  State
	}{
		"nobody":                            {Facts{Height: 5}, Normal},
		"no peer has blocks":                {Facts{Height: 5, Claims: []Claim{{}, {}}}, Normal},
		"everybody is behind":               {Facts{Height: 9, Claims: []Claim{all(3), all(9)}}, Normal},
		"one block":                         {Facts{Height: 9, Claims: []Claim{all(10)}}, Normal},
		"two blocks":                        {Facts{Height: 9, Claims: []Claim{all(11)}}, CatchUp},
		"from the first block on":           {Facts{Claims: []Claim{all(2)}}, CatchUp},
		"one of many is ahead":              {Facts{Height: 9, Claims: []Claim{all(9), all(300), {}}}, CatchUp},
		"far, but states are not fetched":   {Facts{Height: 9, Claims: []Claim{{1, 30_000, 29_000}}}, CatchUp},
		"far":                               {Facts{Height: 9, Claims: []Claim{{1, 30_000, 29_000}}, Far: 10_000}, StateSync},
		"as far as allowed":                 {Facts{Height: 9, Claims: []Claim{{1, 10_009, 10_000}}, Far: 10_000}, CatchUp},
		"far, and no peer has a state":      {Facts{Height: 9, Claims: []Claim{all(30_000)}, Far: 10_000}, CatchUp},
		"far, and the states are older":     {Facts{Height: 9, Claims: []Claim{{1, 30_000, 9}}, Far: 10_000}, CatchUp},
		"pruned":                            {Facts{Height: 9, Claims: []Claim{{11, 300, 290}}, Far: 10_000}, StateSync},
		"pruned, and no peer has a state":   {Facts{Height: 9, Claims: []Claim{{11, 300, 0}}, Far: 10_000}, Normal},
		"pruned by some":                    {Facts{Height: 9, Claims: []Claim{{11, 300, 290}, {10, 200, 0}}, Far: 10_000}, CatchUp},
		"the next one is the last of a few": {Facts{Height: 9, Claims: []Claim{{11, 300, 0}, {1, 10, 0}}}, Normal},
		"claims without sense":              {Facts{Height: math.MaxInt64 - 1, Claims: []Claim{{math.MaxInt64, 0, 0}, {0, math.MaxInt64, 0}}}, Normal},
	} {
		require.Equal(t, c.want, Decide(c.facts), name)
	}
}

// The order of the claims does not matter, and a node that catches up reaches the normal state.
func TestDecideEnds(t *testing.T) {
	random := seeds.Rand(t)
	for range 2000 {
		f := Facts{Height: random.Int64N(50), Far: random.Int64N(20)}
		for range random.IntN(5) {
			first := random.Int64N(60)
			f.Claims = append(f.Claims, Claim{first, first + random.Int64N(60), random.Int64N(100)})
		}
		state := Decide(f)
		random.Shuffle(len(f.Claims), func(i, j int) { f.Claims[i], f.Claims[j] = f.Claims[j], f.Claims[i] })
		require.Equal(t, state, Decide(f), "%+v", f)
		for steps := 0; Decide(f) != Normal; steps++ {
			require.Less(t, steps, 200, "%+v", f)
			switch Decide(f) {
			case CatchUp:
				f.Height++
			case StateSync:
				for _, c := range f.Claims {
					f.Height = max(f.Height, c.Snapshot)
				}
			}
		}
	}
}
