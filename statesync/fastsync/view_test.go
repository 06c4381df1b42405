package fastsync

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/statesync/scheduler"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/transporttest"
)

// viewOf is a View of a join with so many chunks, without a join.
func viewOf(n int) (*View, *round) {
	v, r := new(View), &round{group: 1}
	v.mu.index, v.mu.round, v.mu.height, v.mu.cells = map[scheduler.PeerID]uint16{}, 1, 10, make([]cell, n)
	return v, r
}

func TestViewOfAChunk(t *testing.T) {
	v, r := viewOf(2)
	it := &item{r: r, k: 1}
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
	v.asked(it, "a")
	is(Cell{State: CellAsked, Peer: 1})
	changed()
	v.asked(it, "b")
	is(Cell{State: CellAsked, Peer: 2})
	v.arrived(it, "a")
	is(Cell{State: CellChecking, Peer: 1})
	v.lied(it)
	v.ended(it)
	is(Cell{State: CellAsked, Lied: true, Peer: 1})
	v.ended(it)
	is(Cell{State: CellWaiting, Lied: true, Peer: 1})
	changed()
	v.asked(it, "c")
	v.asked(it, "b")
	v.arrived(it, "c")
	v.stored(it, "c")
	is(Cell{State: CellStored, Lied: true, Peer: 3})
	changed()
	v.ended(it)
	v.lied(it)
	v.asked(it, "b")
	is(Cell{State: CellStored, Lied: true, Peer: 3})
	require.Equal(t, version, v.Version(), "what is done stays")
	v.asked(&item{r: &round{group: 2}, k: 0}, "a")
	v.asked(&item{r: r, k: 7}, "a")
	require.Equal(t, version, v.Version(), "another round is none of this map's business")
}

func TestViewOfManyChunks(t *testing.T) {
	v, _ := viewOf(10)
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
	big, _ := viewOf(1_000_001)
	require.LessOrEqual(t, len(big.Cells(1<<16).Cells), 1<<16)
	require.Equal(t, 16, big.Cells(1<<16).PerCell)
}

func TestNoView(t *testing.T) {
	var none *View
	none.asked(&item{}, "a")
	none.Connecting(nil)
	none.report(Progress{}, nil)
	none.begin(nil)
	none.Over()
	zero := new(View)
	_, joining := zero.Progress()
	require.False(t, joining)
	require.Empty(t, zero.Peers())
	require.Empty(t, zero.Cells(5).Cells)
}

// A join among liars is seen: where it is, who gave what, who was banned and why, and that each
// chunk is there in the end.
func TestViewOfAJoin(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.state(3000, 20_000, 10)
		slow := func(_ *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
			if r.Method == MethodChunk {
				pass(100 * time.Millisecond)
			}
			return answer, err
		}
		w.add(slow, 10)
		w.add(damaged, 10)
		w.add(meddlers["truncated"], 10) // the length alone proves it
		p, view := w.peers(), new(View)
		view.Connecting(p)
		progress, joining := view.Progress()
		require.True(t, joining)
		require.Equal(t, PhaseLooking, progress.Phase)
		chunks, seen := int(w.chain.states[10].NumChunks()), map[CellState]bool{}
		o := w.options(p, newDisk())
		o.View = view
		o.Progress = func(now Progress) {
			c := view.Cells(0)
			for _, cell := range c.Cells {
				seen[cell.State] = true
			}
			if now.Phase == PhaseFetching {
				require.Len(t, c.Cells, chunks)
			}
		}
		w.join(time.Hour, o, 10)
		for _, state := range []CellState{CellWaiting, CellAsked, CellStored} {
			require.True(t, seen[state], "state %d was never seen", state)
		}
		progress, _ = view.Progress()
		require.Equal(t, PhaseDone, progress.Phase)
		require.Equal(t, chunks, progress.ChunksDone)
		cells, lied := view.Cells(0), 0
		peers := view.Peers()
		require.Len(t, peers, 3)
		require.EqualValues(t, transporttest.ID(0), peers[0].ID)
		require.Equal(t, chunks, peers[0].Verified)
		require.Equal(t, w.chain.states[10].Root().Bytes, peers[0].VerifiedBytes)
		require.Equal(t, hostOf(0), peers[0].Address)
		for _, liar := range peers[1:] {
			require.Equal(t, scheduler.StateBanned, liar.State)
			reason := "invalid chunk"
			if string(liar.ID) == string(transporttest.ID(2)) {
				reason = "bytes where"
			}
			require.Contains(t, liar.Reason, reason)
		}
		for k, c := range cells.Cells {
			require.Equal(t, CellStored, c.State, "chunk %d", k)
			require.Equal(t, peers[0].Index, c.Peer, "chunk %d", k)
			if c.Lied {
				lied++
			}
		}
		require.Equal(t, 2, lied, "each liar is asked once")
		view.Over()
		_, joining = view.Progress()
		require.False(t, joining)
	})
}
