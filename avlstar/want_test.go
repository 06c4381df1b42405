package avlstar

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// The halves of a range are not empty, and together contain its keys.
func TestHalves(t *testing.T) {
	rng := seeds.Rand(t)
	key := func() []byte {
		b := make([]byte, rng.IntN(5))
		for i := range b {
			b[i] = []byte{0, 1, 'a', 0xff}[rng.IntN(4)]
		}
		return b
	}
	for range 2000 {
		w := Want{Key: key(), Range: true}
		if rng.IntN(4) > 0 {
			w.After = key()
		}
		if w.After != nil && bytes.Compare(w.Key, w.After) >= 0 {
			continue
		}
		l, r, ok := w.Halves()
		if !ok {
			require.Equal(t, append(bytes.Clone(w.Key), 0), w.After, "only a range of one key has no middle")
			continue
		}
		require.Less(t, bytes.Compare(l.Key, l.After), 0)
		require.True(t, r.After == nil || bytes.Compare(r.Key, r.After) < 0)
		require.Equal(t, [3][]byte{w.Key, l.After, w.After}, [3][]byte{l.Key, r.Key, r.After})
	}
	_, _, ok := (Want{Key: []byte("a")}).Halves()
	require.False(t, ok)
	_, _, ok = (Want{Key: bytes.Repeat([]byte{1}, MaxKeyBytes), Range: true, After: append(bytes.Repeat([]byte{1}, MaxKeyBytes-1), 2)}).Halves()
	require.False(t, ok, "its middle is too long to be a key")
}
