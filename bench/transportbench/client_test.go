package transportbench

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// answering is a peer that reports an answer in the first buffers, and writes what it is told to.
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

// TestIntact: a path that reports success and writes nothing, or other bytes, does not pass. Fewer
// answers than buffers do.
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
	require.ErrorContains(t, fetch(answering{1, nil}), "damaged", "what came before is no answer")
	require.ErrorContains(t, fetch(answering{1, other}), "damaged")
	require.NoError(t, fetch(answering{flight - 1, sent}))
}
