package statesync

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"
)

// world is a joining node in a network: CometBFT's chunk queue and fetchers on one side, honest and
// Byzantine peers on the other.
type world struct {
	t       *testing.T
	rng     *rand.Rand
	joiner  *Manager
	good    [][]byte
	queue   *chunkQueue
	honest  []string
	liars   []string
	banned  map[string]bool
	asked   map[uint32]string // requests in flight: index -> peer
	races   int               // chunks that Byzantine peers may still push unrequested
	guilty  map[string]bool   // senders of bad chunks that were presented
	seen    map[uint32]bool   // indices with a good chunk presented
	wrong   map[uint32]bool   // indices with a bad chunk presented and not yet refetched
	refetch int
}

func newWorld(t *testing.T, rng *rand.Rand, joiner *Manager, good [][]byte, honest, liars, races int) *world {
	w := &world{
		t: t, rng: rng, joiner: joiner, good: good, queue: newChunkQueue(uint32(len(good))), races: races,
		banned: map[string]bool{}, asked: map[uint32]string{}, guilty: map[string]bool{}, seen: map[uint32]bool{}, wrong: map[uint32]bool{},
	}
	for i := range honest {
		w.honest = append(w.honest, fmt.Sprintf("honest-%d", i))
	}
	for i := range liars {
		w.liars = append(w.liars, fmt.Sprintf("liar-%d", i))
	}
	return w
}

// lie returns a Byzantine peer's answer for chunk k: usually wrong, sometimes right.
func (w *world) lie(k uint32) []byte {
	good := slices.Clone(w.good[k])
	switch w.rng.IntN(9) {
	case 0:
		return []byte{}
	case 1:
		return good[:w.rng.IntN(len(good))]
	case 2:
		return append(good, byte(w.rng.Uint32()))
	case 3:
		return make([]byte, 100_000)
	case 4:
		return slices.Clone(w.good[w.rng.IntN(len(w.good))]) // another chunk's
	case 5: // two bytes swapped
		i, j := w.rng.IntN(len(good)), w.rng.IntN(len(good))
		good[i], good[j] = good[j], good[i]
		return good
	case 6:
		return good
	default:
		good[w.rng.IntN(len(good))] ^= 1 << w.rng.IntN(8)
		return good
	}
}

// step performs one random event. It returns false when CometBFT has no chunk left to present.
func (w *world) step() bool {
	switch w.rng.IntN(5) {
	case 0: // one of CometBFT's 4 fetchers takes a chunk
		if len(w.asked) < 4 {
			if k, ok := w.queue.allocate(); ok {
				w.ask(k)
			}
		}
	case 1, 2: // an answer arrives, or the request times out
		for _, k := range slices.Sorted(keys(w.asked)) {
			if w.queue.chunks[k] != nil {
				delete(w.asked, k) // another peer was faster
				continue
			}
			peer := w.asked[k]
			switch {
			case w.rng.IntN(2) == 0:
				continue
			case slices.Contains(w.honest, peer):
				w.queue.add(k, w.good[k], peer)
				delete(w.asked, k)
			case w.rng.IntN(3) == 0: // a Byzantine peer does not answer, or answers "missing"
				w.ask(k)
			default:
				w.queue.add(k, w.lie(k), peer)
				delete(w.asked, k)
			}
			break
		}
	case 3: // a Byzantine peer, rejected or not, pushes an unrequested chunk
		if w.races > 0 && len(w.liars) > 0 {
			w.races--
			k := uint32(w.rng.IntN(len(w.good)))
			w.queue.add(k, w.lie(k), w.liars[w.rng.IntN(len(w.liars))])
		}
	case 4:
		return w.present()
	}
	return true
}

func keys[K comparable, V any](m map[K]V) func(func(K) bool) {
	return func(yield func(K) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// ask asks a random peer that was not rejected.
func (w *world) ask(k uint32) {
	peers := slices.DeleteFunc(slices.Concat(w.honest, w.liars), func(p string) bool { return w.banned[p] })
	w.asked[k] = peers[w.rng.IntN(len(peers))]
}

// present is one iteration of CometBFT's applyChunks. It checks the answer against the world's
// state.
func (w *world) present() bool {
	k, data, sender, ok, done := w.queue.next()
	if done {
		return false
	}
	if !ok {
		return true
	}
	if bytes.Equal(data, w.good[k]) {
		w.seen[k] = true
	} else {
		w.guilty[sender] = true
		w.wrong[k] = true
	}
	resp := apply(w.t, w.joiner, k, data, sender)
	require.Equal(w.t, abci.ResponseApplySnapshotChunk_ACCEPT, resp.Result)
	for _, index := range resp.RefetchChunks {
		require.False(w.t, w.seen[index], "chunk %d was there", index)
		require.True(w.t, w.wrong[index], "chunk %d was not wrong", index)
		delete(w.wrong, index)
		w.refetch++
		w.queue.discard(index)
	}
	for _, sender := range resp.RejectSenders {
		require.True(w.t, w.guilty[sender], "%s did nothing wrong", sender)
		w.banned[sender] = true
		w.queue.discardSender(sender)
	}
	return true
}

// run runs the world until CometBFT has no chunk left.
func (w *world) run() {
	for steps := 0; w.step(); steps++ {
		require.Less(w.t, steps, 200_000, "the sync does not end")
	}
	require.Len(w.t, w.seen, len(w.good))
	require.Empty(w.t, w.wrong)
	require.Equal(w.t, w.guilty, w.banned)
}

// Whatever Byzantine peers send, and however arrivals, presentations and verdicts interleave: the
// sync ends with the right state, verified chunks are not refetched, honest senders are not
// rejected, and detected senders are.
func TestSimulatedSyncsEndWithTheRightState(t *testing.T) {
	worlds := 150
	if testing.Short() {
		worlds = 20
	}
	refetched, chunks := 0, 0
	for seed := range uint64(worlds) {
		rng := newRNG(t, seed)
		v := randomTree(t, rng, 1+rng.IntN(400), 1+rng.Uint64N(600))
		server := serverOf(t, v, 10*(1+rng.Int64N(100)))
		m, target := joiner(t, 1+rng.IntN(4))
		target.yield = rng.IntN(60)
		req := offerOf(t, server)
		require.Equal(t, offerAccept, offer(t, m, req))
		w := newWorld(t, rng, m, chunksOf(t, v), 1+rng.IntN(3), rng.IntN(4), rng.IntN(400))
		w.run()
		target.requireRestored(int64(req.Snapshot.Height), v)
		require.Equal(t, int64(req.Snapshot.Height), m.OldestServed(), "it serves on")
		refetched += w.refetch
		chunks += len(w.good)
	}
	t.Logf("%d worlds, %d chunks, %d refetched", worlds, chunks, refetched)
}

// Beyond CometBFT's behaviour: any index at any time, repeatedly, and while a copy of it is being
// verified.
func TestAnyPresentation(t *testing.T) {
	for seed := range uint64(60) {
		rng := newRNG(t, seed)
		v := randomTree(t, rng, 1+rng.IntN(200), 1+rng.Uint64N(600))
		m, target := joiner(t, 1+rng.IntN(4))
		target.yield = rng.IntN(60)
		require.Equal(t, offerAccept, offer(t, m, offerOf(t, serverOf(t, v, 10))))
		w := newWorld(t, rng, m, chunksOf(t, v), 1, 2, 0)
		for len(w.seen) < len(w.good) {
			k := uint32(rng.IntN(len(w.good)))
			data, sender := w.good[k], "honest"
			if rng.IntN(2) == 0 {
				data, sender = w.lie(k), "liar"
			}
			if bytes.Equal(data, w.good[k]) {
				w.seen[k] = true
			}
			resp := apply(t, m, k, data, sender)
			require.Equal(t, abci.ResponseApplySnapshotChunk_ACCEPT, resp.Result)
			for _, index := range resp.RefetchChunks {
				require.False(t, w.seen[index])
			}
			require.NotContains(t, resp.RejectSenders, "honest")
		}
		target.requireRestored(10, v)
	}
}
