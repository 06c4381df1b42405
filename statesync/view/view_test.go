package view

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/statesync/scheduler"
)

// viewOf returns a Join with n chunks, without a join.
func viewOf(n int) *Join {
	v := new(Join)
	v.mu.index, v.mu.round, v.mu.height, v.mu.cells = map[scheduler.PeerID]uint16{}, 1, 10, make([]cell, n)
	return v
}

func TestViewOfAChunk(t *testing.T) {
	v := viewOf(2)
	it := Chunk{1, 1}
	is := func(want Cell) {
		t.Helper()
		c := v.Cells(0)
		require.Equal(t, Cell{}, c.Cells[0])
		require.Equal(t, want, c.Cells[1])
	}
	version := v.Version()
	changed := func() {
		t.Helper()
		require.Greater(t, v.Version(), version)
		version = v.Version()
	}
	is(Cell{})
	v.Asked(it, "a")
	is(Cell{State: CellAsked, Peer: 1})
	changed()
	v.Asked(it, "b")
	is(Cell{State: CellAsked, Peer: 2})
	v.Arrived(it, "a")
	is(Cell{State: CellChecking, Peer: 1})
	v.Wrong(it)
	v.Ended(it)
	is(Cell{State: CellAsked, Lied: true, Peer: 1})
	v.Ended(it)
	is(Cell{State: CellWaiting, Lied: true, Peer: 1})
	changed()
	v.Asked(it, "c")
	v.Asked(it, "b")
	v.Arrived(it, "c")
	v.Stored(it, "c")
	is(Cell{State: CellStored, Lied: true, Peer: 3})
	changed()
	v.Ended(it)
	v.Wrong(it)
	v.Asked(it, "b")
	is(Cell{State: CellStored, Lied: true, Peer: 3})
	require.Equal(t, version, v.Version(), "a stored chunk stays stored")
	v.Asked(Chunk{2, 0}, "a")
	v.Asked(Chunk{1, 7}, "a")
	require.Equal(t, version, v.Version(), "requests of another round are ignored")
}

func TestViewOfManyChunks(t *testing.T) {
	v := viewOf(10)
	states := []cell{
		{state: CellStored, peer: 1}, {state: CellStored, peer: 2}, {state: CellHere},
		{state: CellStored, peer: 4}, {}, {},
		{state: CellStored}, {state: CellAsked, peer: 3}, {lied: true},
		{state: CellHere},
	}
	copy(v.mu.cells, states)
	c := v.Cells(4)
	require.Equal(t, Cells{Height: 10, Chunks: 10, PerCell: 3, Cells: []Cell{
		{State: CellStored, Peer: 1}, {State: CellPartly, Peer: 4}, {State: CellAsked, Lied: true, Peer: 3}, {State: CellHere},
	}}, c)
	require.Len(t, v.Cells(10).Cells, 10)
	big := viewOf(1_000_001)
	require.LessOrEqual(t, len(big.Cells(1<<16).Cells), 1<<16)
	require.Equal(t, 16, big.Cells(1<<16).PerCell)
}

func TestNoView(t *testing.T) {
	var none *Join
	none.Asked(Chunk{}, "a")
	none.Connecting(nil)
	none.Report(Progress{}, nil)
	none.Begin(1, 10, 3, nil)
	none.Over()
	zero := new(Join)
	_, joining := zero.Progress()
	require.False(t, joining)
	require.Empty(t, zero.Peers())
	require.Empty(t, zero.Cells(5).Cells)
}
