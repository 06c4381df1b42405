package fastsync

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/transporttest"
)

// slowDisk takes its time over a chunk.
type slowDisk struct {
	*disk
	d time.Duration
}

func (s *slowDisk) Write(k uint32, c *avlstar.Chunk) error {
	<-time.After(s.d)
	return s.disk.Write(k, c)
}

// Duplicates of the last chunk, first one still being written.
func TestSecondCopyWhileTheFirstIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.chain.set(10, stateOf(t, newRNG(t), 20, 100_000)) // one chunk
		n, second := new(atomic.Int64), make(chan struct{})
		slow := func(nn *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
			if r.Method == transport.MethodChunk {
				switch n.Add(1) {
				case 1:
					<-second
				case 2:
					close(second)
					<-time.After(5 * time.Millisecond)
				}
			}
			return answer, err
		}
		w.add(slow, 10)
		w.add(slow, 10)
		w.add(slow, 10)
		p := w.peers()
		ctx, cancel := eventually(10 * time.Minute)
		o := w.options(p, newDisk())
		o.Target = &slowDisk{o.Target.(*disk), 20 * time.Millisecond}

		_, err := Join(ctx, o)
		total := 0
		for _, x := range w.nodes {
			total += x.count(transport.MethodChunk)
		}
		cancel()
		p.Close()
		w.close()
		require.NoError(t, err)
	})
}

// A liar tells honest addresses under wrong ids first.
func TestAddressesUnderWrongIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.chain.set(10, stateOf(t, newRNG(t), 200, 10_000))
		poison := func(n *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
			if r.Method == transport.MethodPeers {
				return encodePeers([]transport.Address{{ID: transporttest.ID(777), HostPort: hostOf(2)}}), nil
			}
			return answer, err
		}
		late := func(n *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
			<-time.After(50 * time.Millisecond)
			return answer, err
		}
		w.add(poison)  // 0: liar, no snapshot
		w.add(late)    // 1: honest, no snapshot, tells of 2
		w.add(nil, 10) // 2: honest
		dialer := w.net.Dialer(transporttest.Config{ID: transporttest.ID(9999), Host: "joiner", ChainID: "chain"})
		o := PeersOptions{Logger: w.options(nil, nil).Logger, Dialer: dialer, Self: transporttest.ID(9999), Addresses: []transport.Address{
			{ID: transporttest.ID(0), HostPort: hostOf(0)}, {ID: transporttest.ID(1), HostPort: hostOf(1)},
		}}
		p := NewPeers(o)
		ctx, cancel := eventually(time.Hour)
		_, err := Join(ctx, w.options(p, newDisk()))
		cancel()
		p.Close()
		w.close()
		require.NoError(t, err)
	})
}

// Sybils occupy all slots.
func TestCrowdedPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.chain.set(10, stateOf(t, newRNG(t), 200, 10_000))
		const sybils = 160
		crowd := func(n *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
			if r.Method == transport.MethodPeers {
				var list []transport.Address
				first := 0
				for i, x := range w.nodes {
					if x == n {
						first = i * 32
					}
				}
				for j := first; j < first+32; j++ {
					k := 2 + j%sybils
					list = append(list, transport.Address{ID: transporttest.ID(k), HostPort: hostOf(k)})
				}
				return encodePeers(list), nil
			}
			return answer, err
		}
		w.add(crowd)
		late := func(n *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
			if r.Method == transport.MethodPeers {
				<-time.After(time.Second)
				return encodePeers([]transport.Address{{ID: transporttest.ID(2 + sybils), HostPort: hostOf(2 + sybils)}}), nil
			}
			return answer, err
		}
		w.add(late)
		for range sybils {
			w.add(crowd)
		}
		w.add(nil, 10)
		dialer := w.net.Dialer(transporttest.Config{ID: transporttest.ID(9999), Host: "joiner", ChainID: "chain"})
		o := PeersOptions{Logger: w.options(nil, nil).Logger, Dialer: dialer, Self: transporttest.ID(9999), Addresses: []transport.Address{
			{ID: transporttest.ID(0), HostPort: hostOf(0)}, {ID: transporttest.ID(1), HostPort: hostOf(1)},
		}}
		p := NewPeers(o)
		ctx, cancel := eventually(20 * time.Minute)
		_, err := Join(ctx, w.options(p, newDisk()))
		cancel()
		p.Close()
		w.close()
		require.NoError(t, err)
	})
}

// conflicted headers: two of one height are proved.
type conflicted struct{ *chain }

var errConf = errors.New("conflict")

func (conflicted) Newest(context.Context) (int64, error) { return 0, errConf }

func (conflicted) Conflict() error { return errConf }

func TestConflictEndsTheJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.chain.set(10, stateOf(t, newRNG(t), 200, 10_000))
		w.add(nil, 10)
		p := w.peers()
		ctx, cancel := eventually(time.Hour)
		o := w.options(p, newDisk())
		o.Headers = conflicted{w.chain}
		_, err := Join(ctx, o)
		cancel()
		p.Close()
		w.close()
		require.ErrorIs(t, err, errConf)
	})
}

// A liar claims newer heights with true commitments, and stalls the manifest.
func TestStalledManifests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		rng := newRNG(t)
		v := stateOf(t, rng, 200, 10_000)
		const claimed = 60
		for h := int64(10); h <= claimed*10+10; h += 10 {
			w.chain.set(h, v)
		}
		w.add(nil, 10)
		liar := func(n *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
			switch r.Method {
			case transport.MethodStatus:
				s := Status{Base: 1, Height: 1000}
				for h := int64(20); h <= claimed*10+10; h += 10 {
					s.Snapshots = append(s.Snapshots, h)
				}
				return s.encode(), nil
			case transport.MethodCommitment:
				return v.Commitment().Encode(), nil
			case transport.MethodManifest:
				<-time.After(125 * time.Second)
			}
			return answer, err
		}
		w.add(liar)
		p := w.peers()
		<-time.After(5 * time.Second) // both are known
		ctx, cancel := eventually(24 * time.Hour)
		began := time.Now()
		_, err := Join(ctx, w.options(p, newDisk()))
		cancel()
		p.Close()
		w.close()
		require.NoError(t, err)
		require.Less(t, time.Since(began), 10*time.Minute)
	})
}

// The same while retargeting: the honest peer has pruned 10, and has 20; the liar claims all above.
func TestStalledManifestsWhileRetargeting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		rng := newRNG(t)
		v := stateOf(t, rng, 2000, 10_000)
		for h := int64(10); h <= 300; h += 10 {
			w.chain.set(h, v)
		}
		var served atomic.Int64
		var on atomic.Bool
		prune := func(n *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
			if r.Method == transport.MethodChunk {
				if served.Add(1) > 5 {
					if on.CompareAndSwap(false, true) {
						n.manager.Committed(20, v)
					}
					if c, _ := decodeChunkRequest(r.Body); c.height == 10 {
						return nil, transport.ErrGone
					}
				}
			}
			if r.Method == transport.MethodStatus && on.Load() {
				return Status{Base: 1, Height: 500, Snapshots: []int64{20}}.encode(), nil
			}
			return answer, err
		}
		w.add(prune, 10)
		liar := func(n *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
			switch r.Method {
			case transport.MethodStatus:
				s := Status{Base: 1, Height: 1000}
				for h := int64(30); on.Load() && h <= 300; h += 10 {
					s.Snapshots = append(s.Snapshots, h)
				}
				return s.encode(), nil
			case transport.MethodCommitment:
				return v.Commitment().Encode(), nil
			case transport.MethodManifest:
				<-time.After(125 * time.Second)
			}
			return answer, err
		}
		w.add(liar)
		p := w.peers()
		ctx, cancel := eventually(48 * time.Hour)

		_, err := Join(ctx, w.options(p, newDisk()))
		cancel()
		p.Close()
		w.close()
		require.NoError(t, err)
	})
}

// No snapshot above LocalHeight: waits for ever.
func TestCatchUpWithoutASnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		rng := newRNG(t)
		v := stateOf(t, rng, 200, 10_000)
		w.chain.set(10, v)
		w.add(nil, 10)
		p := w.peers()
		ctx, cancel := eventually(100 * time.Hour)
		o := w.options(p, newDisk())
		o.Local, o.LocalHeight, o.ChooseTimeout = v, 15, 30*time.Second

		_, err := Join(ctx, o)
		cancel()
		p.Close()
		w.close()
		require.ErrorIs(t, err, ErrNothing)
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

// A liar tells an alias (a proxy of its own) of the operator's honest peer, which stalls.
func TestAliasOfAnHonestPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.chain.set(10, stateOf(t, newRNG(t), 200, 10_000))
		honest := w.add(nil, 10)
		liar := func(n *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
			if r.Method == transport.MethodPeers {
				return encodePeers([]transport.Address{{ID: transporttest.ID(0), HostPort: "alias:1"}}), nil
			}
			return answer, err
		}
		w.add(liar)
		mux := new(transport.Mux)
		NewServer(ServerOptions{Snapshots: honest.manager}).Register(mux)
		alias, err := w.net.Listen("alias:1", transporttest.Config{ID: transporttest.ID(0), Host: "liar", ChainID: "chain",
			Handler: transport.HandlerFunc(func(ctx context.Context, r transport.Request) ([]byte, error) {
				if r.Method != transport.MethodStatus && r.Method != transport.MethodPeers {
					<-ctx.Done() // drips, pings answered
					return nil, ctx.Err()
				}
				return mux.Serve(ctx, r)
			})})
		require.NoError(t, err)
		dialer := lateDialer{w.net.Dialer(transporttest.Config{ID: transporttest.ID(9999), Host: "joiner", ChainID: "chain"}), hostOf(0), time.Now().Add(time.Second)}
		p := NewPeers(PeersOptions{Logger: w.options(nil, nil).Logger, Dialer: dialer, Self: transporttest.ID(9999), Addresses: []transport.Address{
			{ID: transporttest.ID(0), HostPort: hostOf(0)}, {ID: transporttest.ID(1), HostPort: hostOf(1)},
		}})
		ctx, cancel := eventually(5 * time.Hour)

		_, err = Join(ctx, w.options(p, newDisk()))
		cancel()
		p.Close()
		w.close()
		alias.Close()
		require.NoError(t, err)
	})
}

// A liar offers only an ancient snapshot, and is a moment faster.
func TestAncientSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		rng := newRNG(t)
		w.chain.set(10, stateOf(t, rng, 20, 10_000))
		w.chain.set(1_000_000, stateOf(t, rng, 2000, 10_000))
		w.add(nil, 10)
		w.add(func(n *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
			<-time.After(150 * time.Millisecond)
			return answer, err
		}, 1_000_000)
		p := w.peers()
		ctx, cancel := eventually(5 * time.Hour)
		result, err := Join(ctx, w.options(p, newDisk()))
		require.NoError(t, err)
		cancel()
		p.Close()
		w.close()
		require.EqualValues(t, 1_000_000, result.Height)
	})
}

// An anonymous peer pins every snapshot there ever was.
func TestAskingHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rng := newRNG(t)
		m := statesync.NewManager(statesync.Options{Interval: 10, Keep: 2})
		mux := new(transport.Mux)
		NewServer(ServerOptions{Snapshots: m}).Register(mux)
		v := stateOf(t, rng, 2000, 10_000)
		for h := int64(10); h <= 3000; h += 10 {
			v = touched(t, rng, v, 50)
			m.Committed(h, v)
			<-time.After(time.Second)
			for _, at := range m.Heights()[:1] {
				_, err := mux.Serve(t.Context(), transport.Request{Method: transport.MethodCommitment, Body: heightBody(at)})
				require.NoError(t, err)
			}
		}
		require.Greater(t, m.OldestServed(), int64(100))
	})
}

// A link on which a chunk takes 20 s, and a new snapshot every 30 s.
func TestSlowLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		rng := newRNG(t)
		v := stateOf(t, rng, 400, 10_000)
		w.chain.set(10, v)
		n := w.add(nil, 10)
		faulty := &transporttest.Faulty{
			Dialer: w.net.Dialer(transporttest.Config{ID: transporttest.ID(9999), Host: "joiner", ChainID: "chain"}), Seed: rng.Uint64(),
			Faults: func(transport.Address) transporttest.Faults { return transporttest.Faults{Rate: 300} },
		}
		p := w.peers(faulty)
		ctx, cancel := eventually(6 * time.Hour)
		go func() {
			newer := v
			for h := int64(20); ctx.Err() == nil; h += 10 {
				<-time.After(30 * time.Second)
				newer = touched(t, rng, newer, 20)
				w.chain.set(h, newer)
				n.manager.Committed(h, newer)
			}
		}()
		began := time.Now()
		_, err := Join(ctx, w.options(p, newDisk()))
		cancel()
		p.Close()
		<-time.After(time.Minute)
		w.close()
		require.NoError(t, err)
		require.Less(t, time.Since(began), 20*time.Minute)
	})
}

// A liar claims newer heights with true manifests, and is busy.
func TestTrueManifestsOfBusyPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		rng := newRNG(t)
		v := stateOf(t, rng, 200, 10_000)
		const claimed = 20
		for h := int64(10); h <= claimed*10+10; h += 10 {
			w.chain.set(h, v)
		}
		w.add(nil, 10)
		liar := func(n *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
			switch r.Method {
			case transport.MethodStatus:
				s := Status{Base: 1, Height: 1000}
				for h := int64(20); h <= claimed*10+10; h += 10 {
					s.Snapshots = append(s.Snapshots, h)
				}
				return s.encode(), nil
			case transport.MethodCommitment:
				return v.Commitment().Encode(), nil
			case transport.MethodManifest:
				return v.Manifest().Encode(), nil
			case transport.MethodChunk:
				return nil, transport.ErrBusy
			}
			return answer, err
		}
		w.add(liar)
		p := w.peers()
		<-time.After(5 * time.Second) // both are known
		ctx, cancel := eventually(100 * time.Hour)

		o := w.options(p, newDisk())
		_, err := Join(ctx, o)
		cancel()
		p.Close()
		w.close()
		require.NoError(t, err)
	})
}

// A liar answers the first piece of a chunk with another first key: which nothing in the sub-manifest commits to.
func TestFirstKeyOfAPiece(t *testing.T) {
	rng := newRNG(t)
	v := stateOf(t, rng, 2000, 100_000)

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
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		rng := newRNG(t)
		for _, h := range []int64{10, 20, 30} {
			w.chain.set(h, stateOf(t, rng, 400, 10_000))
			w.add(nil, h)
		}
		faulty := &transporttest.Faulty{
			Dialer: w.net.Dialer(transporttest.Config{ID: transporttest.ID(9999), Host: "joiner", ChainID: "chain"}), Seed: rng.Uint64(),
			Faults: func(transport.Address) transporttest.Faults { return transporttest.Faults{Rate: 700} },
		}
		p := w.peers(faulty)
		<-time.After(5 * time.Second)
		ctx, cancel := eventually(6 * time.Hour)
		o := w.options(p, newDisk())
		r, err := Join(ctx, o)
		require.NoError(t, err)
		cancel()
		p.Close()
		w.close()
		require.EqualValues(t, 30, r.Height)
	})
}
