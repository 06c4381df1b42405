package restore

import (
	"bytes"
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/fetch"
	"github.com/starling-kv/starling/statesync/peers"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/statesync/snapshot"
	"github.com/starling-kv/starling/statesync/statetest"
	"github.com/starling-kv/starling/statesync/view"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/transporttest"
)

// damaged flips a bit of each chunk.
func damaged(_ *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
	if err != nil || r.Method != protocol.MethodChunk {
		return answer, err
	}
	answer = bytes.Clone(answer)
	answer[len(answer)/2] ^= 4
	return answer, nil
}

// meddlers are the faulty peers of the simulation.
var meddlers = map[string]meddler{
	"damaged": damaged,
	"truncated": func(_ *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
		if err == nil && r.Method == protocol.MethodChunk {
			return answer[:len(answer)-1], nil
		}
		return answer, err
	},
	"oversize": func(_ *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
		if err == nil && r.Method == protocol.MethodChunk {
			return append(bytes.Clone(answer), 0), nil
		}
		return answer, err
	},
	"swapped": func(n *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
		c, decoded := protocol.DecodeChunkRequest(r.Body)
		if err != nil || decoded != nil || r.Method != protocol.MethodChunk {
			return answer, err
		}
		served, ok := n.manager.Serve(c.Height)
		if !ok {
			return answer, err
		}
		defer served.Release()
		return served.Chunk((c.K + 1) % served.Commitment().Chunks)
	},
	"lying manifest": func(_ *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
		if err == nil && r.Method == protocol.MethodManifest && len(answer) > 0 {
			answer = bytes.Clone(answer)
			answer[len(answer)-1] ^= 1
		}
		return answer, err
	},
	"lying commitment": func(_ *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
		if err == nil && r.Method == protocol.MethodCommitment {
			answer = bytes.Clone(answer)
			answer[9] ^= 1
		}
		return answer, err
	},
	"garbage status": func(_ *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
		if r.Method == protocol.MethodStatus {
			return []byte("rubbish"), nil
		}
		return answer, err
	},
	"invented heights": func(_ *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
		if r.Method == protocol.MethodStatus {
			return protocol.Status{Base: 1, Height: 1 << 40, Snapshots: []int64{1 << 20, 1 << 30, testInterval << 32}}.Encode(), nil
		}
		return answer, err
	},
	"always gone": func(_ *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
		if r.Method == protocol.MethodChunk {
			return nil, transport.ErrGone
		}
		return answer, err
	},
	"always busy": func(_ *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
		if r.Method == protocol.MethodChunk {
			return nil, transport.ErrBusy
		}
		return answer, err
	},
}

func TestJoinFromOnePeer(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.state(3000, 20_000, 10)
		w.add(nil, 10)
		p := w.peers()
		var phases []view.Phase
		o := w.options(p, newDisk())
		o.Progress = func(p view.Progress) { phases = append(phases, p.Phase) }
		result := w.join(time.Minute, o, 10)
		require.Equal(t, int(w.chain.states[10].NumChunks()), result.Summary.ChunksDone)
		require.Equal(t, w.chain.states[10].Root().Bytes, result.Summary.BytesDone)
		require.Equal(t, view.PhaseDone, phases[len(phases)-1])
		require.Contains(t, phases, view.PhaseWriting)
	})
}

// One honest peer is enough against every kind of faulty peer, and against all of them together.
func TestJoinAmongLiars(t *testing.T) {
	honest := func(t *testing.T, liars map[string]meddler, copies int) {
		inWorld(t, func(t *testing.T, w *world) {
			w.state(1500, 10_000, 10)
			truth := w.add(nil, 10)
			for _, m := range liars {
				for range copies {
					w.add(m, 10)
				}
			}
			p := w.peers()
			w.join(30*time.Minute, w.options(p, newDisk()), 10)
			require.False(t, isBanned(p, truth), "an honest peer is never banned")
		})
	}
	for name, m := range meddlers {
		t.Run(name, func(t *testing.T) { honest(t, map[string]meddler{name: m}, 3) })
	}
	t.Run("all", func(t *testing.T) { honest(t, meddlers, 4) })
}

// Network faults are not held against peers, except for wrong bytes.
func TestJoinOverABadNetwork(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.state(1500, 10_000, 10)
		for range 6 {
			w.add(nil, 10)
		}
		p := w.peersOver(w.faulty(transporttest.Faults{
			Refuse: 0.2, Loss: 0.1, Delay: 20 * time.Millisecond, Jitter: 50 * time.Millisecond, Reorder: 0.1, Rate: 200_000, Disconnect: 60,
		}), 0)
		w.join(2*time.Hour, w.options(p, newDisk()), 10)
		_, banned := p.Count()
		require.Zero(t, banned)
	})
}

// unproved is a dialer over paths on which an attacker in the network damages answers, unless they
// must be proved.
type unproved struct {
	transport.Dialer
	share  uint32 // one in share answers is damaged
	calls  atomic.Uint32
	doubts atomic.Int64
}

func (u *unproved) Dial(ctx context.Context, a transport.Address) (transport.Conn, error) {
	c, err := u.Dialer.Dial(ctx, a)
	if err != nil {
		return nil, err
	}
	return &unprovedConn{c, u}, nil
}

type unprovedConn struct {
	transport.Conn
	u *unproved
}

func (*unprovedConn) Unproved() bool { return true }
func (c *unprovedConn) Doubt()       { c.u.doubts.Add(1) }

func (c *unprovedConn) Call(ctx context.Context, call transport.Call) ([]byte, error) {
	got, err := c.Conn.Call(ctx, call)
	if err == nil && !call.Proved && len(call.Into) > 0 && c.u.calls.Add(1)%c.u.share == 0 {
		if got[0] ^= 1; c.u.calls.Load()%2 == 0 {
			got = got[:len(got)-1]
		}
	}
	return got, err
}

// An attacker that damages answers bypassing TLS neither gets a peer banned nor prevents the join.
func TestJoinWithAStrangerInTheFabric(t *testing.T) {
	for _, share := range []uint32{1, 3} {
		inWorld(t, func(t *testing.T, w *world) {
			w.state(1500, 10_000, 10)
			for range 3 {
				w.add(nil, 10)
			}
			u := &unproved{Dialer: w.faulty(transporttest.Faults{}), share: share}
			p := w.peersOver(u, 0)
			w.join(30*time.Minute, w.options(p, newDisk()), 10)
			_, banned := p.Count()
			require.Zero(t, banned)
			require.Positive(t, u.doubts.Load())
		})
	}
}

// A peer that answers correctly only if it must prove its answers is excused a few times, whether
// or not it reconnects.
func TestJoinExcusesFewDoubts(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.state(6000, 10_000, 10)
		w.add(nil, 10)
		u := &unproved{Dialer: w.faulty(transporttest.Faults{Disconnect: 40}), share: 1}
		w.join(30*time.Minute, w.options(w.peersOver(u, 0), newDisk()), 10)
		require.LessOrEqual(t, u.doubts.Load(), int64(transport.MaxDoubts+16), "plus the requests in flight by then")
	})
}

// onceWrong is a dialer over paths on which an attacker damages one answer. It counts the proved
// requests, and those made while other requests of the same connection are in flight.
type onceWrong struct {
	transport.Dialer
	after           int32
	calls           atomic.Int32
	proved, crowded atomic.Int32
}

func (d *onceWrong) Dial(ctx context.Context, a transport.Address) (transport.Conn, error) {
	c, err := d.Dialer.Dial(ctx, a)
	if err != nil {
		return nil, err
	}
	return &onceWrongConn{Conn: c, d: d}, nil
}

type onceWrongConn struct {
	transport.Conn
	d        *onceWrong
	underWay atomic.Int32
}

func (*onceWrongConn) Unproved() bool { return true }

func (c *onceWrongConn) Call(ctx context.Context, call transport.Call) ([]byte, error) {
	if call.Method != protocol.MethodChunk {
		return c.Conn.Call(ctx, call)
	}
	others := c.underWay.Add(1) - 1
	defer c.underWay.Add(-1)
	if call.Proved {
		c.d.proved.Add(1)
		if others > 0 {
			c.d.crowded.Add(1)
		}
	}
	got, err := c.Conn.Call(ctx, call)
	if err == nil && c.d.calls.Add(1) == c.d.after {
		got[0] ^= 1
	}
	return got, err
}

// A peer whose wrong answer was unproved has one request in flight until it has sent a right answer
// that proves its sender, even if right answers to earlier requests arrive.
func TestDoubtedPeersHaveOneRequest(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.state(6000, 10_000, 10)
		w.add(nil, 10)
		d := &onceWrong{Dialer: w.faulty(transporttest.Faults{Delay: 50 * time.Millisecond, Jitter: 50 * time.Millisecond}), after: 10}
		p := w.peersOver(d, 0)
		w.join(30*time.Minute, w.options(p, newDisk()), 10)
		_, banned := p.Count()
		require.Zero(t, banned)
		require.Positive(t, d.proved.Load())
		require.Zero(t, d.crowded.Load())
	})
}

// Chunks verified before a kill are not fetched again.
func TestJoinResumes(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.state(4000, 10_000, 10)
		total := int(w.chain.states[10].NumChunks())
		var left atomic.Int64
		left.Store(int64(total / 2))
		stop, interrupt := context.WithCancel(context.Background())
		n := w.add(func(_ *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
			if r.Method == protocol.MethodChunk && left.Add(-1) == 0 {
				interrupt()
			}
			return answer, err
		}, 10)
		d := newDisk()
		p := w.peers()
		_, err := Run(stop, w.options(p, d))
		require.ErrorIs(t, err, context.Canceled)
		p.Close()
		synctest.Wait() // the peer counts earlier requests
		before, there := n.count(protocol.MethodChunk), d.written()
		require.Positive(t, there)
		require.Less(t, there, total)

		p = w.peers()
		result := w.join(time.Minute, w.options(p, d), 10)
		require.Equal(t, total-there, n.count(protocol.MethodChunk)-before, "the rest, once")
		require.Positive(t, result.Summary.Reused)
	})
}

// Chunks that were damaged on disk meanwhile are fetched again.
func TestResumeVerifiesTheDisk(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.state(2000, 10_000, 10)
		w.add(nil, 10)
		d := newDisk()
		m := w.chain.states[10].Manifest()
		require.NoError(t, d.Continue(10, m))
		for k := range m.Entries {
			data, err := w.chain.states[10].Chunk(uint32(k))
			require.NoError(t, err)
			if k%3 == 0 {
				data[len(data)/2] ^= 1
			}
			d.chunks[chunkName(&m.Entries[k])] = data
		}
		p := w.peers()
		w.join(time.Minute, w.options(p, d), 10)
		require.Equal(t, (len(m.Entries)+2)/3, w.nodes[0].count(protocol.MethodChunk))
	})
}

// If all peers prune a snapshot midway, the join continues with a newer one and keeps equal chunks.
func TestJoinRetargets(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		rng := w.rng
		first := statetest.New(t, rng, 12_000, 400_000)
		w.chain.set(10, first)
		second := statetest.Touched(t, rng, first, 3000)
		var left atomic.Int64
		left.Store(int64(first.NumChunks() * 2 / 3))
		prune := make(chan struct{})
		meddle := func(n *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
			if r.Method != protocol.MethodChunk {
				return answer, err
			}
			if left.Add(-1) == 0 {
				close(prune)
			}
			c, decoded := protocol.DecodeChunkRequest(r.Body)
			if decoded == nil && c.Height == 10 && left.Load() < 0 {
				return nil, transport.ErrGone
			}
			return answer, err
		}
		a, b := w.add(meddle, 10), w.add(meddle, 10)
		go func() {
			<-prune
			w.chain.set(20, second)
			for _, n := range []*testNode{a, b} {
				// The manager keeps one: 10 is held because it was requested, but the handler
				// answers "gone".
				n.manager.Committed(20, second)
			}
		}()
		p := w.peers()
		result := w.join(30*time.Minute, w.options(p, newDisk()), 20)
		require.Equal(t, 1, result.Summary.Retargets)
		require.Positive(t, result.Summary.Reused)
		require.Less(t, w.chunkBytesServed(), int(first.Root().Bytes)*5/4, "changed chunks cost pieces only")
		require.Positive(t, a.count(protocol.MethodSubManifest)+b.count(protocol.MethodSubManifest))
	})
}

// halfway sets a first state at height 10. It returns a second one, and a counter of half of the
// first one's chunks.
func (w *world) halfway() (second *avlstar.Version, left *atomic.Int64) {
	w.t.Helper()
	first := w.state(12_000, 100_000, 10)
	left = new(atomic.Int64)
	left.Store(int64(first.NumChunks() / 2))
	return statetest.Touched(w.t, w.rng, first, 300), left
}

// When the only peer drops the snapshot, the join asks for its claims at once, and retargets.
func TestJoinRetargetsAtOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		second, left := w.halfway()
		var n *testNode
		var dropped time.Time
		n = w.add(func(_ *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
			switch {
			case r.Method == protocol.MethodStatus && left.Load() < 0:
				s, err := protocol.DecodeStatus(answer)
				s.Snapshots = []int64{20}
				return s.Encode(), err
			case r.Method != protocol.MethodChunk:
				return answer, err
			case left.Add(-1) == 0:
				dropped = time.Now()
				w.chain.set(20, second)
				n.manager.Committed(20, second)
			}
			c, decoded := protocol.DecodeChunkRequest(r.Body)
			if decoded == nil && c.Height == 10 && left.Load() < 0 {
				return nil, transport.ErrGone
			}
			return answer, err
		}, 10)
		p := w.peers()
		pass(peers.StatusEvery / 4) // the next regular status is not due when the snapshot goes
		result := w.join(time.Minute, w.options(p, newDisk()), 20)
		require.Equal(t, 1, result.Summary.Retargets)
		require.Less(t, time.Since(dropped), peers.StatusEvery/2)
	})
}

// While the only peer with the snapshot is disconnected, the join waits for it instead of changing
// to another peer's snapshot.
func TestLostPeersAreAwaited(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		second, left := w.halfway()
		var a, b *testNode
		gone, back := make(chan struct{}), make(chan struct{})
		meddle := func(_ *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
			if r.Method == protocol.MethodChunk && left.Add(-1) == 0 {
				close(gone)
			}
			return answer, err
		}
		a, b = w.add(meddle, 10), w.add(nil)
		go func() {
			<-gone
			w.chain.set(20, second)
			b.manager.Committed(20, second)
			a.listener.Close()
			pass(lackAfter / 2)
			a.listen(w, hostOf(0))
			close(back)
		}()
		p := w.peersOver(w.dialer(), 0, 1)
		result := w.join(time.Minute, w.options(p, newDisk()), 10)
		<-back
		require.Zero(t, result.Summary.Retargets)
	})
}

func lyingSubManifest(_ *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
	if err == nil && r.Method == protocol.MethodSubManifest {
		answer = bytes.Clone(answer)
		answer[len(answer)-1] ^= 1
	}
	return answer, err
}

// Answers without a lent buffer came over TLS: faults in them are not excused.
func TestSubManifestsAreProved(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		old := statetest.New(t, w.rng, 8000, 200_000)
		w.chain.set(30, statetest.Touched(t, w.rng, old, 800))
		w.add(nil, 30)
		for range 3 {
			w.add(lyingSubManifest, 30)
		}
		u := &unproved{Dialer: w.faulty(transporttest.Faults{}), share: math.MaxUint32}
		o := w.options(w.peersOver(u, 0), newDisk())
		o.Local, o.LocalHeight = old, 20
		w.join(30*time.Minute, o, 30)
		require.Zero(t, u.doubts.Load())
	})
}

// A node that was offline fetches only what differs.
func TestCatchUpFetchesWhatDiffers(t *testing.T) {
	for name, meddle := range map[string]meddler{
		"honest":                     nil,
		"with invalid sub-manifests": lyingSubManifest,
		"with invalid pieces":        damaged,
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				rng := w.rng
				old := statetest.New(t, rng, 8000, 200_000)
				w.chain.set(30, statetest.Touched(t, rng, old, 800))
				w.add(nil, 30)
				if meddle != nil {
					w.add(meddle, 30)
				}
				p := w.peers()
				o := w.options(p, newDisk())
				o.Local, o.LocalHeight = old, 20
				w.join(30*time.Minute, o, 30)
				require.Less(t, w.chunkBytesServed(), int(old.Root().Bytes)/3)
			})
		})
	}
}

// If everything has changed, sub-manifests are soon no longer requested.
func TestCatchUpAfterALongTime(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		rng := w.rng
		old := statetest.New(t, rng, 8000, 70_000)
		w.state(8000, 70_000, 30)
		n := w.add(nil, 30)
		p := w.peers()
		o := w.options(p, newDisk())
		o.Local, o.LocalHeight = old, 20
		w.join(30*time.Minute, o, 30)
		require.Equal(t, int(w.chain.states[30].NumChunks())+1, n.count(protocol.MethodChunk), "each once, and one to see that there is one")
	})
}

// A disk failure ends the join; written chunks stay for the next one.
func TestJoinFailsWithTheDisk(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.state(2000, 10_000, 10)
		w.add(nil, 10)
		full := errors.New("disk full")
		d := &failingDisk{disk: newDisk(), err: full}
		d.left.Store(5)
		p := w.peers()
		o := w.options(p, d.disk)
		o.Target = d
		_, err := w.try(time.Minute, o)
		require.ErrorIs(t, err, full)
		_, _, unfinished := d.Unfinished()
		require.True(t, unfinished)
		p.Close()

		p = w.peers()
		w.join(time.Minute, w.options(p, d.disk), 10)
	})
}

type failingDisk struct {
	*disk
	left atomic.Int64
	err  error
}

func (d *failingDisk) Write(k uint32, c *avlstar.Chunk) error {
	if d.left.Add(-1) < 0 {
		return d.err
	}
	return d.disk.Write(k, c)
}

// A state whose parameters allow no snapshot at its height is discarded: no honest peer offers that
// snapshot. After any other failure of the commit, the chunks stay.
func TestJoinDiscardsAWrongInterval(t *testing.T) {
	for _, c := range []struct {
		err     error
		discard bool
	}{{statesync.ErrWrongInterval, true}, {errors.New("disk full"), false}} {
		inWorld(t, func(t *testing.T, w *world) {
			w.state(200, 10_000, 10)
			w.add(nil, 10)
			d := &refusingDisk{disk: newDisk(), err: c.err}
			o := w.options(w.peers(), d.disk)
			o.Target = d
			_, err := w.try(time.Minute, o)
			require.ErrorIs(t, err, c.err)
			require.Equal(t, c.discard, d.aborted)
		})
	}
}

// refusingDisk refuses every state.
type refusingDisk struct {
	*disk
	err     error
	aborted bool
}

func (d *refusingDisk) Commit(int64, *avlstar.Version) error { return d.err }

func (d *refusingDisk) Abort() error {
	d.aborted = true
	return nil
}

// The memory of a delta is free again when it ends, whether or not it succeeded.
func TestDeltasGiveBackTheirMemory(t *testing.T) {
	v := statetest.New(t, seeds.Rand(t), 8000, 100_000)
	defer v.Release()
	r := &round{Choice: &snapshot.Choice{Height: 10, Manifest: v.Manifest()}, deltas: new(deltas)}
	j := &joiner{round: r}
	j.loop = fetch.New(t.Context(), 0, nil, j)
	defer j.loop.Stop()
	for k, e := range r.Manifest.Entries {
		r.deltas.waiting = append(r.deltas.waiting, uint32(k))
		require.NotZero(t, e.Root.Bytes)
	}
	j.moreDeltas()
	require.Empty(t, r.deltas.waiting)
	require.Equal(t, v.Root().Bytes, r.deltas.active)
	for k := range r.Manifest.Entries {
		j.deltaAnswer(&item{kind: subManifest, r: r, k: uint32(k)}, &deltaAnswer{poor: k%2 == 0, done: k%2 > 0})
	}
	require.Zero(t, r.deltas.active)
}

// Without peers, a join waits, and reports why when it is cancelled.
func TestJoinWithoutPeers(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		p := w.peers()
		_, err := w.try(10*time.Second, w.options(p, newDisk()))
		require.ErrorIs(t, err, snapshot.ErrNoPeers)
		require.Len(t, p.Failures(), 1)
		p.Close()
	})
}
