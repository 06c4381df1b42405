package restore

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/bubble"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/statesync/serve"
	"github.com/starling-kv/starling/statesync/snapshot"
	"github.com/starling-kv/starling/statesync/statetest"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/transporttest"
)

// instead replaces the answers of one method.
func instead(method transport.Method, answer func() ([]byte, error)) meddler {
	return func(_ *testNode, r transport.Request, honest []byte, err error) ([]byte, error) {
		if r.Method == method {
			return answer()
		}
		return honest, err
	}
}

// after delays the answers of a method.
func after(d time.Duration, method transport.Method) meddler {
	return func(_ *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
		if r.Method == method {
			pass(d)
		}
		return answer, err
	}
}

// both applies one meddler after the other.
func both(first, second meddler) meddler {
	return func(n *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
		answer, err = first(n, r, answer, err)
		return second(n, r, answer, err)
	}
}

// every returns the heights from lo to hi that have a snapshot.
func every(lo, hi int64) (heights []int64) {
	for h := lo; h <= hi; h += testInterval {
		heights = append(heights, h)
	}
	return heights
}

// claims claims snapshots at heights; their commitments are right if the state is v.
func claims(v *avlstar.Version, heights func() []int64) meddler {
	status := instead(protocol.MethodStatus, func() ([]byte, error) {
		return protocol.Status{Base: 1, Height: 1000, Snapshots: heights()}.Encode(), nil
	})
	return both(status, instead(protocol.MethodCommitment, func() ([]byte, error) { return v.Commitment().Encode(), nil }))
}

// The last chunk is requested from several peers, and a second answer arrives while the first one
// is being written.
func TestHostileSecondCopyWhileTheFirstIsWritten(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.state(20, 100_000, 10) // one chunk
		var n atomic.Int64
		second := make(chan struct{})
		slow := func(_ *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
			if r.Method == protocol.MethodChunk {
				switch n.Add(1) {
				case 1:
					<-second
				case 2:
					close(second)
					pass(5 * time.Millisecond)
				}
			}
			return answer, err
		}
		for range 3 {
			w.add(slow, 10)
		}
		o := w.options(w.peers(), newDisk())
		o.Target = &slowDisk{diskOf(o.Target), 20 * time.Millisecond}
		w.join(10*time.Minute, o, 10)
		synctest.Wait()
		total := 0
		for _, x := range w.nodes {
			total += x.count(protocol.MethodChunk)
			require.LessOrEqual(t, x.count(protocol.MethodChunk), 1, "each is asked once at most")
		}
		require.GreaterOrEqual(t, total, 2, "a second one was asked")
		require.Equal(t, 1, diskOf(o.Target).written(), "and one answer written")
	})
}

// An attacker advertises honest addresses under wrong IDs first.
func TestHostileAddressesUnderWrongIDs(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.state(200, 10_000, 10)
		w.add(instead(protocol.MethodPeers, func() ([]byte, error) { // the attacker: no snapshot
			return protocol.EncodePeers([]transport.Address{{ID: transporttest.ID(777), HostPort: hostOf(2)}}), nil
		}))
		// An honest peer without a snapshot advertises node 2.
		w.add(func(_ *testNode, _ transport.Request, answer []byte, err error) ([]byte, error) {
			pass(50 * time.Millisecond)
			return answer, err
		})
		w.add(nil, 10)
		w.join(time.Hour, w.options(w.peersOver(w.dialer(), 0, 1), newDisk()), 10)
	})
}

// Sybils, which advertise each other, occupy all slots.
func TestHostileCrowdedPlaces(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.state(200, 10_000, 10)
		const sybils = 160
		crowd := func(n *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
			if r.Method != protocol.MethodPeers {
				return answer, err
			}
			first := 0
			for i, x := range w.nodes {
				if x == n {
					first = i * 32
				}
			}
			var list []transport.Address
			for j := first; j < first+32; j++ {
				list = append(list, addressOf(2+j%sybils))
			}
			return protocol.EncodePeers(list), nil
		}
		w.add(crowd)
		w.add(instead(protocol.MethodPeers, func() ([]byte, error) {
			pass(time.Second)
			return protocol.EncodePeers([]transport.Address{addressOf(2 + sybils)}), nil
		}))
		for range sybils {
			w.add(crowd)
		}
		w.add(nil, 10)
		w.join(20*time.Minute, w.options(w.peersOver(w.dialer(), 0, 1), newDisk()), 10)
	})
}

// conflicted has two proved headers of one height.
type conflicted struct{ *chain }

var errConf = errors.New("conflict")

func (conflicted) Newest(context.Context) (int64, error) { return 0, errConf }

func (conflicted) Conflict() error { return errConf }

func TestConflictEndsTheJoin(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.state(200, 10_000, 10)
		w.add(nil, 10)
		o := w.options(w.peers(), newDisk())
		o.Headers = conflicted{w.chain}
		_, err := w.try(time.Hour, o)
		require.ErrorIs(t, err, errConf)
	})
}

// lateConflict is a conflict that is detected later.
type lateConflict struct {
	*chain
	found atomic.Bool
}

func (c *lateConflict) Conflict() error {
	if c.found.Load() {
		return errConf
	}
	return nil
}

// conflictDisk triggers the conflict after a number of written chunks.
type conflictDisk struct {
	*disk
	headers *lateConflict
	at      int
}

func (d *conflictDisk) Write(k uint32, c *avlstar.Chunk) error {
	err := d.disk.Write(k, c)
	if d.written() == d.at {
		d.headers.found.Store(true)
	}
	return err
}

// A conflict detected after the snapshot was chosen ends the join as well: while chunks are
// awaited, and when the last one is written. Nothing is committed.
func TestConflictAfterTheChoiceEndsTheJoin(t *testing.T) {
	for name, last := range map[string]bool{"while a chunk is awaited": false, "with the last chunk": true} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				v := w.state(2000, 10_000, 10)
				headers := &lateConflict{chain: w.chain}
				d := &conflictDisk{newDisk(), headers, int(v.NumChunks())}
				over := make(chan struct{})
				if !last {
					d.at /= 2
				}
				var served atomic.Int64
				w.add(func(_ *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
					if r.Method == protocol.MethodChunk && served.Add(1) > int64(d.at) {
						<-over
					}
					return answer, err
				}, 10)
				o := w.options(w.peers(), d.disk)
				o.Headers, o.Target = headers, d
				began := time.Now()
				_, err := w.try(time.Hour, o)
				close(over)
				require.ErrorIs(t, err, errConf)
				require.Less(t, time.Since(began), 3*time.Second)
				require.Nil(t, d.state)
			})
		})
	}
}

// A node starts at a snapshot's height H with the headers up to H+2: before these exist, the
// snapshot is not chosen.
func TestSnapshotWithoutTheHeadersAboveIt(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		v := w.state(200, 10_000, 10)
		w.chain.set(20, v)
		w.chain.newest = 21
		w.add(nil, 20)
		p := w.peers()
		_, err := w.try(10*time.Second, w.options(p, newDisk()))
		require.ErrorIs(t, err, snapshot.ErrNoSnapshots)
		w.chain.set(20, v) // header 22 exists
		w.join(10*time.Second, w.options(p, newDisk()), 20)
	})
}

// The first byte of a piece is its height inside the chunk, which the piece's own hash does not
// cover. A peer that alters it in a range is banned all the same, and no delta is wasted.
func TestHostileHeightOfAPiece(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		old := statetest.New(t, w.rng, 8000, 200_000)
		w.chain.set(30, statetest.Touched(t, w.rng, old, 400))
		liar := w.add(func(_ *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
			if c, decoded := protocol.DecodeChunkRequest(r.Body); err == nil && r.Method == protocol.MethodChunk && decoded == nil && c.Offset > 0 {
				answer = bytes.Clone(answer)
				answer[0] ^= 1
			}
			return answer, err
		}, 30)
		w.add(nil, 30)
		p := w.peersOver(lateDialer{w.dialer(), hostOf(1), time.Now().Add(3 * time.Second)}, 0, 1)
		o := w.options(p, newDisk())
		o.Local, o.LocalHeight = old, 20
		w.join(10*time.Minute, o, 30)
		_, banned := p.Addresses()
		require.Contains(t, banned, liar.listener.Address().ID)
		require.Positive(t, w.nodes[1].count(protocol.MethodSubManifest)+w.nodes[1].count(protocol.MethodChunk))
	})
}

// An attacker claims newer heights with right commitments, and stalls the manifest.
func TestHostileStalledManifests(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		v := w.state(200, 10_000, every(10, 610)...)
		w.add(nil, 10)
		claim := claims(v, func() []int64 { return every(20, 610) })
		w.add(both(claim, after(125*time.Second, protocol.MethodManifest)))
		p := w.peers()
		pass(5 * time.Second) // both are connected
		began := time.Now()
		_, err := w.try(24*time.Hour, w.options(p, newDisk()))
		require.NoError(t, err)
		require.Less(t, time.Since(began), 10*time.Minute)
	})
}

// The same while retargeting: the honest peer has pruned 10 and has 20; the attacker claims all
// heights above.
func TestHostileStalledManifestsWhileRetargeting(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		v := w.state(2000, 10_000, every(10, 300)...)
		var served atomic.Int64
		var pruned atomic.Bool
		w.add(func(n *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
			if r.Method == protocol.MethodChunk && served.Add(1) > 5 {
				if pruned.CompareAndSwap(false, true) {
					n.manager.Committed(20, v)
				}
				if c, _ := protocol.DecodeChunkRequest(r.Body); c.Height == 10 {
					return nil, transport.ErrGone
				}
			}
			if r.Method == protocol.MethodStatus && pruned.Load() {
				return protocol.Status{Base: 1, Height: 500, Snapshots: []int64{20}}.Encode(), nil
			}
			return answer, err
		}, 10)
		claim := claims(v, func() []int64 {
			if pruned.Load() {
				return every(30, 300)
			}
			return nil
		})
		w.add(both(claim, after(125*time.Second, protocol.MethodManifest)))
		_, err := w.try(48*time.Hour, w.options(w.peers(), newDisk()))
		require.NoError(t, err)
	})
}

// If no snapshot is above LocalHeight, the join ends after ChooseTimeout.
func TestCatchUpWithoutASnapshot(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		v := w.state(200, 10_000, 10)
		w.add(nil, 10)
		o := w.options(w.peers(), newDisk())
		o.Local, o.LocalHeight, o.ChooseTimeout = v, 15, 30*time.Second
		_, err := w.try(100*time.Hour, o)
		require.ErrorIs(t, err, snapshot.ErrNothing)
	})
}

type lateDialer struct {
	transport.Dialer
	host  string
	until time.Time
}

func (d lateDialer) Dial(ctx context.Context, a transport.Address) (transport.Conn, error) {
	if a.HostPort == d.host && time.Now().Before(d.until) {
		return nil, errors.New("refused")
	}
	return d.Dialer.Dial(ctx, a)
}

// An attacker advertises an alias (its own proxy) of the operator's honest peer, which stalls.
func TestHostileAliasOfAnHonestPeer(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.state(200, 10_000, 10)
		honest := w.add(nil, 10)
		w.add(instead(protocol.MethodPeers, func() ([]byte, error) {
			return protocol.EncodePeers([]transport.Address{{ID: transporttest.ID(0), HostPort: "alias:1"}}), nil
		}))
		mux := new(transport.Mux)
		serve.New(serve.Options{Snapshots: honest.manager}).Register(mux)
		alias, err := w.net.Listen("alias:1", transporttest.Config{ID: transporttest.ID(0), Host: "liar", ChainID: "chain",
			Handler: transport.HandlerFunc(func(ctx context.Context, r transport.Request) ([]byte, error) {
				if r.Method != protocol.MethodStatus && r.Method != protocol.MethodPeers {
					<-ctx.Done() // it drips, and answers pings
					return nil, ctx.Err()
				}
				return mux.Serve(ctx, r)
			})})
		require.NoError(t, err)
		defer alias.Close()
		p := w.peersOver(lateDialer{w.dialer(), hostOf(0), time.Now().Add(time.Second)}, 0, 1)
		w.join(5*time.Hour, w.options(p, newDisk()), 10)
	})
}

// An attacker offers only a very old snapshot, and is slightly faster.
func TestHostileAncientSnapshot(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.state(20, 10_000, 10)
		w.state(2000, 10_000, 1_000_000)
		w.add(nil, 10)
		w.add(func(_ *testNode, _ transport.Request, answer []byte, err error) ([]byte, error) {
			pass(150 * time.Millisecond)
			return answer, err
		}, 1_000_000)
		w.join(5*time.Hour, w.options(w.peers(), newDisk()), 1_000_000)
	})
}

// An anonymous peer requests every snapshot that ever existed: that pins none for long.
func TestHostileAskingHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rng := seeds.Rand(t)
		m := statesync.NewManager(statesync.Options{Interval: 10, Keep: 2})
		mux := new(transport.Mux)
		serve.New(serve.Options{Snapshots: m}).Register(mux)
		v := statetest.New(t, rng, 2000, 10_000)
		for h := int64(10); h <= 3000; h += 10 {
			v = statetest.Touched(t, rng, v, 50)
			m.Committed(h, v)
			pass(time.Second)
			for _, at := range m.Heights()[:1] {
				_, err := mux.Serve(t.Context(), transport.Request{Method: protocol.MethodCommitment, Body: protocol.HeightBody(at)})
				require.NoError(t, err)
			}
		}
		require.Greater(t, m.OldestServed(), int64(100))
	})
}

// A link on which a chunk takes 20 s, with a new snapshot every 30 s.
func TestSlowLink(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		v := w.state(400, 10_000, 10)
		n := w.add(nil, 10)
		p := w.peersOver(w.faulty(transporttest.Faults{Rate: 300}), 0)
		over := make(chan struct{})
		var chain sync.WaitGroup
		chain.Go(func() {
			newer := v
			for h := int64(20); ; h += 10 {
				select {
				case <-over:
					return
				case <-bubble.After(30 * time.Second):
				}
				newer = statetest.Touched(t, w.rng, newer, 20)
				w.chain.set(h, newer)
				n.manager.Committed(h, newer)
			}
		})
		began := time.Now()
		_, err := w.try(6*time.Hour, w.options(p, newDisk()))
		close(over)
		chain.Wait()
		require.NoError(t, err)
		require.Less(t, time.Since(began), 20*time.Minute)
	})
}

// An attacker claims newer heights with right manifests, and is busy.
func TestHostileTrueManifestsOfBusyPeers(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		v := w.state(200, 10_000, every(10, 210)...)
		w.add(nil, 10)
		claim := claims(v, func() []int64 { return every(20, 210) })
		manifest := instead(protocol.MethodManifest, func() ([]byte, error) { return v.Manifest().Encode(), nil })
		busy := instead(protocol.MethodChunk, func() ([]byte, error) { return nil, transport.ErrBusy })
		w.add(both(both(claim, manifest), busy))
		p := w.peers()
		pass(5 * time.Second) // both are connected
		_, err := w.try(100*time.Hour, w.options(p, newDisk()))
		require.NoError(t, err)
	})
}

// An attacker answers the first piece of a chunk with another first key, which no hash of the
// sub-manifest covers.
func TestFirstKeyOfAPiece(t *testing.T) {
	v := statetest.New(t, seeds.Rand(t), 2000, 100_000)
	data, err := v.Chunk(1)
	require.NoError(t, err)
	cut, err := v.CutChunk(1, pieceBytes)
	require.NoError(t, err)
	sub := cut.Manifest()
	piece := bytes.Clone(data[:sub.Entries[0].Root.Bytes])
	piece[3] ^= 1 // key
	require.Error(t, verifyPieces(sub, 0, 1, piece))
}

// A chunk takes 6 s; peers have 10, 20 and 30.
func TestSlowFirstChunk(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		for _, h := range []int64{10, 20, 30} {
			w.state(400, 10_000, h)
			w.add(nil, h)
		}
		p := w.peersOver(w.faulty(transporttest.Faults{Rate: 700}), 0)
		pass(5 * time.Second)
		w.join(6*time.Hour, w.options(p, newDisk()), 30)
	})
}
