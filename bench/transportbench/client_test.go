package transportbench

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// answering is a peer that reports responses in the first buffers, and writes what the test
// specifies.
type answering struct {
	answers int
	write   []byte
}

func (p answering) fetch(_ context.Context, buffers [][]byte, _ func() bool, came func(int)) error {
	for i, b := range buffers[:p.answers] {
		copy(b, p.write)
		came(i)
	}
	return nil
}

func (answering) close() error { return nil }

// TestIntact: a path that reports success but writes nothing, or wrong bytes, is detected. Fewer
// responses than buffers are accepted.
func TestIntact(t *testing.T) {
	const size = 1000
	sent := pattern(size)
	other := pattern(size)
	other[size-1] ^= 1
	c := &client{ctx: t.Context(), b: begin{Largest: size}, pattern: sent}
	for range flight {
		c.buffers = append(c.buffers, make([]byte, size))
	}
	fetch := func(p answering) error {
		c.peers = map[string][]peer{pathTCP: {p}}
		a, err := c.fetch(request{Path: pathTCP, Size: size, Flight: flight})
		require.EqualValues(t, p.answers*size, a.Bytes)
		return err
	}
	require.NoError(t, fetch(answering{flight, sent}))
	require.ErrorContains(t, fetch(answering{1, nil}), "damaged", "the bytes of an earlier turn are not a response")
	require.ErrorContains(t, fetch(answering{1, other}), "damaged")
	require.NoError(t, fetch(answering{flight - 1, sent}))
}
