package restore

import (
	"bytes"
	"context"
	"encoding/binary"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/peers"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/statesync/scheduler"
	"github.com/starling-kv/starling/statesync/snapshot"
	"github.com/starling-kv/starling/statesync/statetest"
	"github.com/starling-kv/starling/transport"
)

func spans(edges ...uint32) (list []scheduler.Span) {
	for i := 0; i < len(edges); i += 2 {
		list = append(list, scheduler.Span{From: edges[i], To: edges[i+1]})
	}
	return list
}

// leavesOf is a Pin of some leaves of a state, like that of a storage node.
type leavesOf struct {
	t     *testing.T
	v     *avlstar.Version
	reads atomic.Int64
}

func (p *leavesOf) Range(first, after []byte, _ uint64) (records []byte, _ error) {
	p.reads.Add(1)
	for l, err := range p.v.Leaves() {
		require.NoError(p.t, err)
		if bytes.Compare(l.Key, first) >= 0 && (after == nil || bytes.Compare(l.Key, after) < 0) {
			records = record.Append(records, l)
		}
	}
	return records, nil
}

func (p *leavesOf) Close() error { return nil }

// addPart adds a peer that has the chunks of share, for some of the chain's states.
func (w *world) addPart(meddle meddler, share func(chunks uint32) []scheduler.Span, heights ...int64) *testNode {
	w.t.Helper()
	w.parts = true
	n := w.add(meddle)
	w.parts = false
	for _, h := range heights {
		v := w.chain.states[h]
		description, err := statesync.EncodePin(v)
		require.NoError(w.t, err)
		require.NoError(w.t, n.manager.AddPart(h, description, share(v.NumChunks()), &leavesOf{t: w.t, v: v}))
	}
	return n
}

// shard is the i-th of n equal shares.
func shard(i, n uint32) func(chunks uint32) []scheduler.Span {
	return func(chunks uint32) []scheduler.Span { return spans(chunks*i/n, chunks*(i+1)/n) }
}

// Four peers have a quarter each. Each is asked only for its own chunks, once for each.
func TestJoinFromParts(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		v := w.state(3000, 10_000, 10)
		for i := range uint32(4) {
			w.addPart(nil, shard(i, 4), 10)
		}
		result := w.join(time.Minute, w.options(w.peers(), newDisk()), 10)
		require.Equal(t, int(v.NumChunks()), result.Summary.ChunksDone)
		require.Zero(t, result.Summary.Refetched)
		asked := 0
		for i, n := range w.nodes {
			own := shard(uint32(i), 4)(v.NumChunks())[0]
			require.Equal(t, int(own.To-own.From), n.count(protocol.MethodChunk), "node %d", i)
			asked += n.count(protocol.MethodManifest)
		}
		require.Positive(t, asked)
	})
}

// A node answers "gone" for a chunk that it does not have; that is not a fault.
func TestServesItsPart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		v := w.state(2000, 100_000, 10)
		n := w.addPart(nil, shard(1, 2), 10)
		conn, err := w.dialer().Dial(context.Background(), addressOf(0))
		require.NoError(t, err)
		defer conn.Close()
		status, err := peers.AskStatus(context.Background(), conn)
		require.NoError(t, err)
		require.Empty(t, status.Snapshots, "an older joiner is not to ask for the snapshot")
		last := v.NumChunks() - 1
		for k, want := range map[uint32]error{0: transport.ErrGone, last: nil, last + 1: transport.ErrRefused} {
			_, err := conn.Call(context.Background(), transport.Call{Method: protocol.MethodChunk, Body: protocol.ChunkRequest{Height: 10, K: k, Offset: 0, Length: 1}.Encode(), Max: 1})
			require.ErrorIs(t, err, want, "chunk %d", k)
			_, err = conn.Call(context.Background(), transport.Call{Method: protocol.MethodSubManifest, Body: protocol.SubManifestRequest{Height: 10, K: k, Limit: 4096}.Encode(), Max: 1 << 20})
			require.ErrorIs(t, err, want, "chunk %d", k)
		}
		manifest, err := conn.Call(context.Background(), transport.Call{Method: protocol.MethodManifest, Body: protocol.HeightBody(10), Max: 1 << 20})
		require.NoError(t, err)
		require.Equal(t, v.Manifest().Encode(), manifest)
		n.manager.GiveUp(10)
		_, err = conn.Call(context.Background(), transport.Call{Method: protocol.MethodChunk, Body: protocol.ChunkRequest{Height: 10, K: last, Offset: 0, Length: 1}.Encode(), Max: 1})
		require.ErrorIs(t, err, transport.ErrGone)
	})
}

// The honest owner of each chunk is enough, even among peers that send invalid chunks or make false
// claims.
func TestJoinFromPartsAmongLiars(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.state(1500, 10_000, 10)
		for i := range uint32(3) {
			w.addPart(nil, shard(i, 3), 10)
		}
		for _, m := range meddlers {
			w.addPart(m, shard(w.rng.Uint32N(2), 2), 10)
		}
		for _, chunks := range []uint32{1, 7, 1 << 31} { // false claims of parts
			w.addPart(func(_ *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
				if r.Method == protocol.MethodParts {
					lie := []statesync.Part{{Height: 10, Chunks: chunks, Spans: spans(0, chunks)}, {Height: 1 << 40, Chunks: 2, Spans: spans(0, 2)}}
					return protocol.EncodeParts(lie), nil
				}
				return answer, err
			}, shard(0, 2), 10)
		}
		w.addPart(func(_ *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
			if r.Method == protocol.MethodParts {
				return binary.BigEndian.AppendUint64([]byte{1, 0, 1}, 10), nil
			}
			return answer, err
		}, shard(0, 2), 10)
		garbage := w.nodes[len(w.nodes)-1]
		p := w.peers()
		w.join(30*time.Minute, w.options(p, newDisk()), 10)
		for i := range 3 {
			require.False(t, isBanned(p, w.nodes[i]), "an honest peer is never banned")
		}
		require.True(t, isBanned(p, garbage))
	})
}

// A join waits for chunks that no peer has: it fetches the rest, and ends when a peer provides
// them.
func TestJoinWaitsForAPart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		v := w.state(2000, 10_000, 10)
		w.addPart(nil, shard(0, 3), 10)
		w.addPart(nil, shard(2, 3), 10)
		d, p := newDisk(), w.peers()
		_, err := w.try(time.Minute, w.options(p, d))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		middle := shard(1, 3)(v.NumChunks())[0]
		require.Equal(t, int(v.NumChunks()-(middle.To-middle.From)), d.written(), "all but the middle")

		o := w.options(p, newDisk())
		o.ChooseTimeout = 5 * time.Second
		_, err = w.try(time.Minute, o)
		require.ErrorIs(t, err, snapshot.ErrNothing)
		require.ErrorIs(t, err, snapshot.ErrIncomplete, "nothing starts within so short a timeout")
		p.Close()

		p = w.peers()
		joined := make(chan struct{})
		go func() {
			defer close(joined)
			w.join(time.Hour, w.options(p, d), 10)
		}()
		pass(time.Minute)
		select {
		case <-joined:
			t.Error("the join has ended without the middle")
		default:
		}
		w.addPart(nil, shard(1, 3), 10)
		<-joined
	})
}

// A complete snapshot is preferred to a newer one of which peers have only a part.
func TestPartsOfANewerSnapshotAreNotChosen(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.state(2000, 10_000, 10)
		w.state(2000, 10_000, 20)
		w.addPart(nil, shard(0, 2), 10)
		w.addPart(nil, shard(1, 2), 10)
		w.addPart(nil, shard(1, 2), 20)
		w.join(time.Minute, w.options(w.peers(), newDisk()), 10)
	})
}

// A node with an older state fetches what differs from peers with parts. It does not give up its
// state for chunks that no peer has.
func TestCatchUpFromParts(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		old := statetest.New(t, w.rng, 8000, 200_000)
		w.chain.set(30, statetest.Touched(t, w.rng, old, 800))
		w.addPart(nil, shard(0, 2), 30)
		p := w.peers()
		o := w.options(p, newDisk())
		o.Local, o.LocalHeight, o.ChooseTimeout = old, 20, time.Minute
		_, err := w.try(2*time.Minute, o)
		require.ErrorIs(t, err, snapshot.ErrIncomplete)
		_, _, begun := diskOf(o.Target).Unfinished()
		require.False(t, begun)
		w.addPart(nil, shard(1, 2), 30)
		w.join(time.Minute, o, 30)
		require.Less(t, w.chunkBytesServed(), int(old.Root().Bytes)/3)
	})
}

// Peers that have everything get the same requests as before parts existed.
func TestWholeSnapshotsAreNotAskedForParts(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.state(2000, 10_000, 10)
		whole, none := w.add(nil, 10), w.add(nil)
		w.join(time.Minute, w.options(w.peers(), newDisk()), 10)
		pass(time.Minute)
		require.Zero(t, whole.count(protocol.MethodParts))
		require.Equal(t, 1, none.count(protocol.MethodParts), "it has refused once")
	})
}

// A claim with a number of chunks that differs from the manifest's is ignored.
func TestClaimsOfAnotherManifest(t *testing.T) {
	r := &round{Choice: &snapshot.Choice{Height: 10, Manifest: &avlstar.Manifest{Entries: make([]avlstar.Entry, 4)}}, group: 7}
	status := protocol.Status{Parts: []statesync.Part{{Height: 10, Chunks: 4, Spans: spans(1, 3)}}}
	_, parts := chunksHeld(status, r)
	require.Equal(t, []scheduler.Part{{Group: 7, Spans: []scheduler.Span{{From: 1, To: 3}}}}, parts)
	status.Parts[0].Chunks = 5
	_, parts = chunksHeld(status, r)
	require.Empty(t, parts, "of another number of chunks")
	require.False(t, status.Has(11, 1))
}
