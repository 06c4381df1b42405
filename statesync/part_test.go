package statesync

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync/scheduler"
)

// partPin is a Pin with all leaves, or with damaged ones.
type partPin struct {
	t       *testing.T
	v       *avlstar.Version
	damaged bool
	closed  int
}

func (p *partPin) Range(first, after []byte, size uint64) ([]byte, error) {
	require.Zero(p.t, p.closed)
	f := newFakePins(p.t)
	f.mu.open[1] = 1
	for l, err := range p.v.Leaves() {
		require.NoError(p.t, err)
		f.mu.stored[1] = append(f.mu.stored[1], l)
	}
	b, err := (&fakePin{f, 1}).Range(first, after, size)
	if p.damaged {
		b[len(b)-1] ^= 1
	}
	return b, err
}

func (p *partPin) Close() error {
	p.closed++
	return nil
}

// Parts of snapshots are served like snapshots, but are neither offered to CometBFT nor listed
// among complete snapshots. Closing a part frees its memory.
func TestAddPart(t *testing.T) {
	v := randomTree(t, newRNG(t, 1), 300, 300)
	description, err := EncodePin(v)
	require.NoError(t, err)
	m := NewManager(Options{Interval: 10, Keep: 2})
	all := []scheduler.Span{{From: 0, To: 1}, {From: 2, To: v.NumChunks()}}
	var pins []*partPin
	add := func(height int64, description []byte, spans []scheduler.Span) error {
		pins = append(pins, &partPin{t: t, v: v})
		return m.AddPart(height, description, spans, pins[len(pins)-1])
	}
	for name, err := range map[string]error{
		"an invalid description": add(10, description[1:], all),
		"beyond the last chunk":  add(10, description, []scheduler.Span{{From: 0, To: v.NumChunks() + 1}}),
		"no chunks":              add(10, description, nil),
	} {
		require.Error(t, err, name)
	}
	for _, p := range pins {
		require.Equal(t, 1, p.closed, "closed where it was not taken")
	}
	pins = nil
	for _, h := range []int64{10, 20, 30} {
		require.NoError(t, add(h, description, all))
	}
	require.Error(t, add(30, description, all), "a second time")
	require.Equal(t, []Part{{20, v.NumChunks(), all}, {30, v.NumChunks(), all}}, m.Parts())
	require.Equal(t, 1, pins[0].closed, "beyond Keep")
	require.Empty(t, m.Heights())
	require.Empty(t, m.List())

	served, ok := m.Serve(20)
	require.True(t, ok)
	require.False(t, served.Has(1))
	require.True(t, served.Has(2))
	want, err := v.Chunk(2)
	require.NoError(t, err)
	got, err := served.Chunk(2)
	require.NoError(t, err)
	require.Equal(t, want, got)
	m.GiveUp(20)
	m.GiveUp(20)
	require.Zero(t, pins[1].closed, "it is still in use")
	served.Release()
	require.Equal(t, 1, pins[1].closed)

	pins[2].damaged = true
	served, ok = m.Serve(30)
	require.True(t, ok)
	_, err = served.Chunk(2)
	require.True(t, errors.Is(err, ErrDamagedPin))
	require.Empty(t, m.Parts(), "a damaged part is no longer served")
	served.Release()
	require.Equal(t, 1, pins[2].closed)

	require.NoError(t, add(40, description, all))
	require.NoError(t, m.Close())
	require.Equal(t, 1, pins[len(pins)-1].closed)
	require.Error(t, add(50, description, all))
}
