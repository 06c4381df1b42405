package workload

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func begin(t *testing.T, seed uint64) *Workload {
	t.Helper()
	w, err := New(Spec{Seed: seed, Keys: 5000, Batch: 1024}, 30)
	require.NoError(t, err)
	return w
}

func TestSameSeedSameOperations(t *testing.T) {
	a, b, other := begin(t, 7), begin(t, 7), begin(t, 8)
	for range 30 {
		want := a.Next()
		require.Equal(t, want, b.Next())
		require.NotEqual(t, want, other.Next())
	}
	require.Equal(t, a.Present(100, 3), b.Present(100, 3))
	require.NotEqual(t, a.Present(100, 3), a.Present(100, 4))
}

func TestLoadIsNewKeysInBatches(t *testing.T) {
	w := begin(t, 1)
	seen := map[string]bool{}
	var sizes []int
	for !w.Loaded() {
		changes := w.Next()
		sizes = append(sizes, len(changes))
		for _, c := range changes {
			require.Len(t, c.Key, KeyBytes)
			require.Len(t, c.Value, ValueBytes)
			require.False(t, seen[string(c.Key)], "repeated key")
			seen[string(c.Key)] = true
		}
	}
	require.Equal(t, []int{1024, 1024, 1024, 1024, 904}, sizes)
	require.Equal(t, len(sizes), Spec{Keys: 5000, Batch: 1024}.LoadSteps())
	require.Equal(t, 5000, w.Len())
}

// The model agrees with a map to which the changes are applied, and every version has the specified
// shares of updates, inserts and deletes.
func TestVersionsHaveTheirShares(t *testing.T) {
	w := begin(t, 1)
	state := map[string]string{}
	for !w.Loaded() {
		for _, c := range w.Next() {
			state[string(c.Key)] = string(c.Value)
		}
	}
	for range 25 {
		var updates, inserts, deletes int
		seen := map[string]bool{}
		for _, c := range w.Next() {
			require.False(t, seen[string(c.Key)], "repeated key in one version")
			seen[string(c.Key)] = true
			old, there := state[string(c.Key)]
			switch {
			case c.Value == nil:
				require.True(t, there, "deleted an absent key")
				deletes++
				delete(state, string(c.Key))
				continue
			case there:
				require.NotEqual(t, old, string(c.Value), "an update changed nothing")
				updates++
			default:
				inserts++
			}
			state[string(c.Key)] = string(c.Value)
		}
		require.Equal(t, []int{Updates, Inserts, Deletes}, []int{updates, inserts, deletes})
		require.Equal(t, len(state), w.Len())
	}
	for _, c := range w.Present(500, 0) {
		require.Equal(t, state[string(c.Key)], string(c.Value))
	}
	for i, key := range w.PresentKeys(500, 0) {
		require.Equal(t, w.Present(500, 0)[i].Key, key)
	}
}

func TestTooFewKeysAreRefused(t *testing.T) {
	_, err := New(Spec{Keys: 100, Batch: 10}, 1)
	require.ErrorContains(t, err, "too few")
	_, err = New(Spec{Keys: 5000}, 1)
	require.ErrorContains(t, err, "load batch")
}
