package fastsync

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
	"github.com/starling-kv/starling/statesync/scheduler"
	"github.com/starling-kv/starling/transport"
)

func spans(edges ...uint32) (list []statesync.Span) {
	for i := 0; i < len(edges); i += 2 {
		list = append(list, statesync.Span{From: edges[i], To: edges[i+1]})
	}
	return list
}

func TestPartsRoundTrip(t *testing.T) {
	for _, parts := range [][]statesync.Part{
		nil,
		{{Height: 10, Chunks: 1, Spans: spans(0, 1)}},
		{{Height: 10, Chunks: 100, Spans: spans(0, 25, 50, 75)}, {Height: 1<<63 - 1, Chunks: 1<<32 - 1, Spans: spans(1<<32-2, 1<<32-1)}},
	} {
		got, err := decodeParts(encodeParts(parts))
		require.NoError(t, err)
		require.Equal(t, parts, got)
	}
	var many []statesync.Part
	for h := range int64(100) {
		p := statesync.Part{Height: h + 1, Chunks: 1000}
		for k := range uint32(300) {
			p.Spans = append(p.Spans, statesync.Span{From: 3 * k, To: 3*k + 2})
		}
		many = append(many, p)
	}
	b := encodeParts(many)
	require.Len(t, b, maxPartsBytes)
	got, err := decodeParts(b)
	require.NoError(t, err)
	require.Len(t, got, maxPartHeight)
	require.Equal(t, many[99].Spans[:maxSpans], got[maxPartHeight-1].Spans, "the newest, and of each the first spans")
}

func TestPartsRefuses(t *testing.T) {
	one := func(p statesync.Part) []byte { return encodeParts([]statesync.Part{p}) }
	good := one(statesync.Part{Height: 10, Chunks: 9, Spans: spans(0, 2, 4, 9)})
	for name, b := range map[string][]byte{
		"nothing":                  {},
		"another version":          append([]byte{2}, good[1:]...),
		"bytes left over":          append(bytes.Clone(good), 0),
		"too short":                good[:len(good)-1],
		"too many":                 {1, 0, maxPartHeight + 1},
		"more than there are":      {1, 0, 2},
		"height 0":                 one(statesync.Part{Chunks: 9, Spans: spans(0, 2)}),
		"no chunks":                one(statesync.Part{Height: 1, Chunks: 9}),
		"an empty span":            one(statesync.Part{Height: 1, Chunks: 9, Spans: spans(3, 3)}),
		"spans that touch":         one(statesync.Part{Height: 1, Chunks: 9, Spans: spans(0, 3, 3, 5)}),
		"spans that overlap":       one(statesync.Part{Height: 1, Chunks: 9, Spans: spans(0, 3, 2, 5)}),
		"beyond the last chunk":    one(statesync.Part{Height: 1, Chunks: 9, Spans: spans(0, 10)}),
		"heights that descend":     encodeParts([]statesync.Part{{Height: 2, Chunks: 9, Spans: spans(0, 1)}, {Height: 1, Chunks: 9, Spans: spans(0, 1)}}),
		"a height beyond the last": append([]byte{1, 0, 1, 0x80, 0, 0, 0, 0, 0, 0, 0}, good[11:]...),
	} {
		_, err := decodeParts(b)
		require.ErrorIs(t, err, errMessage, name)
	}
}

// What nobody has is found, whoever lies about how many chunks there are.
func TestIncomplete(t *testing.T) {
	part := func(chunks uint32, edges ...uint32) statesync.Part {
		return statesync.Part{Height: 10, Chunks: chunks, Spans: spans(edges...)}
	}
	require.NoError(t, incomplete(10, nil))
	require.NoError(t, incomplete(10, []statesync.Part{part(100, 0, 50), part(100, 40, 100)}))
	require.NoError(t, incomplete(10, []statesync.Part{part(100, 0, 50), part(100, 40, 100), part(1<<31, 0, 1)}), "a liar is alone")
	err := incomplete(10, []statesync.Part{part(100, 0, 25), part(100, 50, 60, 61, 100), part(1<<31, 0, 100)})
	require.ErrorIs(t, err, errIncomplete)
	require.ErrorContains(t, err, "height 10: nobody who is connected has chunks 25 to 49, 60 of 100")
	require.Equal(t, "chunk 7", chunkNames(spans(7, 8)))
	require.Equal(t, "chunks 0, 2, 4, 6 to 8, 5 more", chunkNames(spans(0, 1, 2, 3, 4, 5, 6, 9, 10, 12, 20, 23)))
}

// leavesOf is a pin of some of the leaves of a state, as a storage node has them.
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

// addPart makes a peer that has some chunks of states of the chain: those of share, in so many.
func (w *world) addPart(meddle meddler, share func(chunks uint32) []statesync.Span, heights ...int64) *testNode {
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
func shard(i, n uint32) func(chunks uint32) []statesync.Span {
	return func(chunks uint32) []statesync.Span { return spans(chunks*i/n, chunks*(i+1)/n) }
}

// Four peers have a quarter each. Each is asked for its own chunks only, and for each once.
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
			require.Equal(t, int(own.To-own.From), n.count(MethodChunk), "node %d", i)
			asked += n.count(MethodManifest)
		}
		require.Positive(t, asked)
	})
}

// A node that is asked for a chunk that it has not does not have it, which is no lie.
func TestServesItsPart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		v := w.state(2000, 100_000, 10)
		n := w.addPart(nil, shard(1, 2), 10)
		conn, err := w.dialer().Dial(context.Background(), addressOf(0))
		require.NoError(t, err)
		defer conn.Close()
		status, err := AskStatus(context.Background(), conn)
		require.NoError(t, err)
		require.Empty(t, status.Snapshots, "an older joiner is not to ask for the snapshot")
		last := v.NumChunks() - 1
		for k, want := range map[uint32]error{0: transport.ErrGone, last: nil, last + 1: transport.ErrRefused} {
			_, err := conn.Call(context.Background(), transport.Call{Method: MethodChunk, Body: chunkRequest{10, k, 0, 1}.encode(), Max: 1})
			require.ErrorIs(t, err, want, "chunk %d", k)
			_, err = conn.Call(context.Background(), transport.Call{Method: MethodSubManifest, Body: subManifestRequest{10, k, 4096}.encode(), Max: 1 << 20})
			require.ErrorIs(t, err, want, "chunk %d", k)
		}
		manifest, err := conn.Call(context.Background(), transport.Call{Method: MethodManifest, Body: heightBody(10), Max: 1 << 20})
		require.NoError(t, err)
		require.Equal(t, v.Manifest().Encode(), manifest)
		n.manager.GiveUp(10)
		_, err = conn.Call(context.Background(), transport.Call{Method: MethodChunk, Body: chunkRequest{10, last, 0, 1}.encode(), Max: 1})
		require.ErrorIs(t, err, transport.ErrGone)
	})
}

// Beside liars about chunks, and about what they have, the honest owner of each chunk is enough.
func TestJoinFromPartsAmongLiars(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.state(1500, 10_000, 10)
		for i := range uint32(3) {
			w.addPart(nil, shard(i, 3), 10)
		}
		for _, m := range meddlers {
			w.addPart(m, shard(w.rng.Uint32N(2), 2), 10)
		}
		for _, chunks := range []uint32{1, 7, 1 << 31} { // claims of parts that they do not have
			w.addPart(func(_ *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
				if r.Method == MethodParts {
					lie := []statesync.Part{{Height: 10, Chunks: chunks, Spans: spans(0, chunks)}, {Height: 1 << 40, Chunks: 2, Spans: spans(0, 2)}}
					return encodeParts(lie), nil
				}
				return answer, err
			}, shard(0, 2), 10)
		}
		w.addPart(func(_ *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
			if r.Method == MethodParts {
				return binary.BigEndian.AppendUint64([]byte{partsVersion, 0, 1}, 10), nil
			}
			return answer, err
		}, shard(0, 2), 10)
		garbage := w.nodes[len(w.nodes)-1]
		p := w.peers()
		w.join(30*time.Minute, w.options(p, newDisk()), 10)
		for i := range 3 {
			_, banned := p.mu.banned[w.nodes[i].listener.Address().ID]
			require.False(t, banned, "an honest peer is never banned")
		}
		_, banned := p.mu.banned[garbage.listener.Address().ID]
		require.True(t, banned)
	})
}

// What nobody has is waited for: the rest is fetched, and the join ends when somebody brings it.
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
		require.ErrorIs(t, err, ErrNothing)
		require.ErrorIs(t, err, errIncomplete, "who waits for so short a time begins nothing")
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

// A snapshot that peers have all chunks of comes before a newer one that they have a part of.
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

// A node that has an older state gets what differs from peers with parts, and does not give its
// state up for chunks that nobody has.
func TestCatchUpFromParts(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		old := stateOf(t, w.rng, 8000, 200_000)
		w.chain.set(30, touched(t, w.rng, old, 800))
		w.addPart(nil, shard(0, 2), 30)
		p := w.peers()
		o := w.options(p, newDisk())
		o.Local, o.LocalHeight, o.ChooseTimeout = old, 20, time.Minute
		_, err := w.try(2*time.Minute, o)
		require.ErrorIs(t, err, errIncomplete)
		_, _, begun := diskOf(o.Target).Unfinished()
		require.False(t, begun)
		w.addPart(nil, shard(1, 2), 30)
		w.join(time.Minute, o, 30)
		require.Less(t, w.chunkBytesServed(), int(old.Root().Bytes)/3)
	})
}

// Peers that have everything are asked what they were asked before.
func TestWholeSnapshotsAreNotAskedForParts(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.state(2000, 10_000, 10)
		whole, none := w.add(nil, 10), w.add(nil)
		w.join(time.Minute, w.options(w.peers(), newDisk()), 10)
		pass(time.Minute)
		require.Zero(t, whole.count(MethodParts))
		require.Equal(t, 1, none.count(MethodParts), "it has refused once")
	})
}

// A claim about another number of chunks than the manifest has is of no use.
func TestClaimsOfAnotherManifest(t *testing.T) {
	r := &round{choice: &choice{height: 10, manifest: &avlstar.Manifest{Entries: make([]avlstar.Entry, 4)}}, group: 7}
	status := Status{Parts: []statesync.Part{{Height: 10, Chunks: 4, Spans: spans(1, 3)}}}
	_, parts := status.chunksOf(r)
	require.Equal(t, []scheduler.Part{{Group: 7, Spans: []scheduler.Span{{From: 1, To: 3}}}}, parts)
	status.Parts[0].Chunks = 5
	_, parts = status.chunksOf(r)
	require.Empty(t, parts, "of another number of chunks")
	require.False(t, status.has(11, 1))
}
