// Package statetest builds states for tests of the packages that fetch and serve them.
package statetest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
)

// New returns a state of n keys with values of about 200 bytes.
func New(t testing.TB, rng *rand.Rand, n int, chunkBytes uint64) *avlstar.Version {
	t.Helper()
	v, err := avlstar.Empty(chunkBytes)
	require.NoError(t, err)
	var changes []avlstar.Change
	for i := range n {
		changes = append(changes, avlstar.Change{Key: fmt.Appendf(nil, "%08x-%d", rng.Uint32(), i), Value: Value(rng)})
	}
	return Applied(t, v, changes)
}

// Value returns a random value of 100 to 299 bytes.
func Value(rng *rand.Rand) []byte {
	value := make([]byte, 100+rng.IntN(200))
	for i := range value {
		value[i] = byte(rng.Uint32())
	}
	return value
}

// Applied returns the state after changes.
func Applied(t testing.TB, v *avlstar.Version, changes []avlstar.Change) *avlstar.Version {
	t.Helper()
	next, err := v.Apply(changes)
	require.NoError(t, err)
	return next
}

// Touched returns the state after changes to one leaf in oneIn.
func Touched(t testing.TB, rng *rand.Rand, v *avlstar.Version, oneIn int) *avlstar.Version {
	t.Helper()
	var changes []avlstar.Change
	i, which := 0, rng.IntN(oneIn) // at fixed distances: random choices might select none
	for kv, err := range v.Ascend(nil, nil) {
		require.NoError(t, err)
		if i++; i%oneIn == which {
			changes = append(changes, avlstar.Change{Key: bytes.Clone(kv.Key), Value: Value(rng)})
		}
	}
	require.NotEmpty(t, changes)
	return Applied(t, v, changes)
}
