package avlstar

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestProofVectors makes every proof of the vectors byte for byte, and verifies it with this
// package's decoder and with ics23/go alone.
func TestProofVectors(t *testing.T) {
	proofs, absent, empty := 0, 0, 0
	eachVector(t, func(t *testing.T, v *Version, state vectorBlock) {
		for _, want := range state.Proofs {
			proofs++
			got, err := v.Prove(want.Key)
			require.NoError(t, err)
			require.Equal(t, want.State, hexBytes(got.State), "key %x: state operator", want.Key)
			require.Equal(t, want.Map, hexBytes(got.Map), "key %x: map operator", want.Key)
			require.NoError(t, VerifyProof(Hash(state.AppHash), want.Key, want.Value, got))
			requireICS23(t, v, want.Key, want.Value, got)
			if want.Value == nil {
				absent++
			}
			if want.State == nil {
				empty++
			}
		}
	})
	t.Logf("%d proofs, %d of absence, %d of them in the empty tree", proofs, absent, empty)
	require.NotZero(t, proofs-absent)
	require.NotZero(t, absent-empty)
	require.NotZero(t, empty)
}
