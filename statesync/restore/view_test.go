package restore

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/statesync/scheduler"
	"github.com/starling-kv/starling/statesync/view"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/transporttest"
)

// The View shows a join among faulty peers: its progress, what each peer sent, which peers were
// banned and why, and finally each chunk.
func TestViewOfAJoin(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.state(3000, 20_000, 10)
		slow := func(_ *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
			if r.Method == protocol.MethodChunk {
				pass(100 * time.Millisecond)
			}
			return answer, err
		}
		w.add(slow, 10)
		w.add(damaged, 10)
		w.add(meddlers["truncated"], 10) // its length alone is proof
		p, shown := w.peers(), new(view.Join)
		shown.Connecting(p)
		progress, joining := shown.Progress()
		require.True(t, joining)
		require.Equal(t, view.PhaseLooking, progress.Phase)
		chunks, seen, memory := int(w.chain.states[10].NumChunks()), map[view.CellState]bool{}, int64(0)
		o := w.options(p, newDisk())
		o.View = shown
		o.Progress = func(now view.Progress) {
			c := shown.Cells(0)
			for _, cell := range c.Cells {
				seen[cell.State] = true
			}
			if now.Phase == view.PhaseFetching {
				require.Len(t, c.Cells, chunks)
				memory = max(memory, now.Memory)
			}
		}
		w.join(time.Hour, o, 10)
		for _, state := range []view.CellState{view.CellWaiting, view.CellAsked, view.CellStored} {
			require.True(t, seen[state], "state %d was never seen", state)
		}
		progress, _ = shown.Progress()
		require.Equal(t, view.PhaseDone, progress.Phase)
		require.Equal(t, chunks, progress.ChunksDone)
		require.Positive(t, memory)
		cells, lied := shown.Cells(0), 0
		peers := shown.Peers()
		require.Len(t, peers, 3)
		require.EqualValues(t, transporttest.ID(0), peers[0].ID)
		require.Equal(t, chunks, peers[0].Verified)
		require.Equal(t, w.chain.states[10].Root().Bytes, peers[0].VerifiedBytes)
		require.Equal(t, hostOf(0), peers[0].Address)
		for _, liar := range peers[1:] {
			require.Equal(t, scheduler.StateBanned, liar.State)
			reason := "invalid chunk"
			if string(liar.ID) == string(transporttest.ID(2)) {
				reason = "bytes, want"
			}
			require.Contains(t, liar.Reason, reason)
		}
		for k, c := range cells.Cells {
			require.Equal(t, view.CellStored, c.State, "chunk %d", k)
			require.Equal(t, peers[0].Index, c.Peer, "chunk %d", k)
			if c.Lied {
				lied++
			}
		}
		require.Equal(t, 2, lied, "each faulty peer is asked once")
		shown.Over()
		_, joining = shown.Progress()
		require.False(t, joining)
	})
}
