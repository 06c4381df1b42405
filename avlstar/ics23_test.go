package avlstar

import (
	"testing"

	ics23 "github.com/cosmos/ics23/go"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// TestICS23 checks proofs of random trees, some of them large, with ics23/go alone. It also checks
// that the encoder, which writes directly from the tree's memory, makes the bytes that ics23's own
// encoder makes from the decoded proof.
func TestICS23(t *testing.T) {
	rnd := seeds.Rand(t)
	present, absent := 0, 0
	for range scaled(40) {
		keys := 1 + rnd.IntN(1<<rnd.IntN(13))
		v := advance(t, mustEmpty(t, 1+rnd.Uint64N(1<<16)), randomBlock(rnd, 1+rnd.IntN(2*keys), keys, 0, true)...)
		for range 3 {
			v = advance(t, v, randomBlock(rnd, rnd.IntN(keys), keys, 0.4, true)...)
		}
		asked := [][]byte{{0}, {0xff, 0xff, 0xff}}
		for range 60 {
			asked = append(asked, randomKey(rnd, keys+2))
		}
		n := 0
		for key := range mustAscend(t, v, nil, nil) {
			if n++; n%(1+int(v.Len())/60) == 0 {
				asked = append(asked, key, append(key, 0))
			}
		}
		for _, key := range asked {
			value, ok := mustGet(t, v, key)
			p, err := v.Prove(key)
			require.NoError(t, err)
			requireICS23(t, v, key, value, p)
			requireMarshal(t, p)
			require.NoError(t, VerifyProof(v.AppHash(), key, value, p))
			if ok {
				present++
			} else {
				absent++
			}
			if p.State == nil {
				continue
			}
			// The proof is invalid for any other root, and does not prove the opposite.
			other, root := Hash{1}, v.Root().Hash
			var s ics23.CommitmentProof
			require.NoError(t, s.Unmarshal(p.State))
			require.False(t, ics23.VerifyMembership(StateSpec, other[:], &s, key, append(value, 1)))
			require.False(t, ics23.VerifyNonMembership(StateSpec, other[:], &s, key))
			require.Equal(t, !ok, ics23.VerifyNonMembership(StateSpec, root[:], &s, key))
			require.False(t, ics23.VerifyMembership(StateSpec, root[:], &s, key, append(value, 1)))
		}
	}
	require.NotZero(t, present)
	require.NotZero(t, absent)
	t.Logf("%d proofs of presence, %d of absence", present, absent)
}

func requireMarshal(t require.TestingT, p Proof) {
	for _, b := range [][]byte{p.State, p.Map} {
		if b == nil {
			continue
		}
		var proof ics23.CommitmentProof
		require.NoError(t, proof.Unmarshal(b))
		again, err := proof.Marshal()
		require.NoError(t, err)
		require.Equal(t, again, b)
	}
}
