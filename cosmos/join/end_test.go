package join_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/join"
	"github.com/starling-kv/starling/cosmos/nodedb/nodedbtest"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/transporttest"
)

// TestEnd: whatever all peers do, a join without a state ends within a bounded time, and its error
// has the last answer of each peer.
func TestEnd(t *testing.T) {
	silent := func(ctx context.Context, _ transport.Handler, _ transport.Request) ([]byte, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	gone := func(context.Context, transport.Handler, transport.Request) ([]byte, error) {
		return nil, transport.ErrGone
	}
	lies := func(ctx context.Context, honest transport.Handler, r transport.Request) ([]byte, error) {
		b, err := honest.Serve(ctx, r)
		return append(bytes.Clone(b), 0), err
	}
	manifests := func(fn change) change {
		return func(ctx context.Context, honest transport.Handler, r transport.Request) ([]byte, error) {
			if r.Method != iavlsync.MethodManifest {
				return honest.Serve(ctx, r)
			}
			return fn(ctx, honest, r)
		}
	}
	const atOnce = 2 * time.Second
	for name, test := range map[string]struct {
		peers  []change // each of an own peer
		set    func(w *world, o *join.Options)
		most   time.Duration
		err    error
		answer string // of each peer
	}{
		"nobody listens": {nil, func(_ *world, o *join.Options) {
			o.Addresses = []transport.Address{{HostPort: "nobody:1"}, {HostPort: "nobody:2"}}
		}, time.Minute, join.ErrNothing, "connection refused"},
		"another chain": {[]change{nil, nil}, func(w *world, o *join.Options) {
			o.Dialer = w.network.Dialer(transporttest.Config{ID: transporttest.ID(99), ChainID: "other"})
		}, atOnce, join.ErrNoPeers, transport.ErrWrongChain.Error() + `: "` + chainID + `"`},
		"another id": {[]change{nil}, func(_ *world, o *join.Options) { o.Addresses[0].ID = transporttest.ID(7) },
			atOnce, join.ErrNoPeers, transport.ErrWrongID.Error()},
		"no offers":      {[]change{silent, silent}, nil, time.Minute, join.ErrNothing, "no answer in time"},
		"invalid offers": {[]change{lies, lies}, nil, atOnce, join.ErrNoPeers, "banned: "},
		"another height": {[]change{nil}, func(_ *world, o *join.Options) { o.Height = height + 1 }, time.Minute, join.ErrNothing,
			"no state of height 13: it offers height 12"},
		"no header": {[]change{nil}, func(_ *world, o *join.Options) { o.Headers = headers{} }, time.Minute, join.ErrNothing,
			"offers height 12"},
		"no manifest":      {[]change{manifests(gone)}, nil, time.Minute, join.ErrNothing, "no manifest of height 12: " + transport.ErrGone.Error()},
		"silent manifest":  {[]change{manifests(silent)}, nil, 2 * time.Minute, join.ErrNothing, "no manifest of height 12: no answer in time"},
		"invalid manifest": {[]change{manifests(lies), manifests(lies)}, nil, atOnce, join.ErrNoPeers, "banned: "},
		"no chunks":        {[]change{leaves(gone), leaves(gone)}, nil, 3 * time.Minute, join.ErrStalled, "no chunk: " + transport.ErrGone.Error()},
		"silent chunks":    {[]change{leaves(silent), leaves(silent)}, nil, 3 * time.Minute, join.ErrStalled, "no chunk: no answer in time"},
		"invalid chunks":   {[]change{leaves(lies), leaves(lies)}, nil, atOnce, join.ErrNoPeers, "banned: "},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := randomWorld(t, 100)
				for _, c := range test.peers {
					w.add(c)
				}
				o := w.options(nodedbtest.NewMem())
				if test.set != nil {
					test.set(w, &o)
				}
				from := time.Now()
				_, err := join.Join(context.Background(), o)
				require.ErrorIs(t, err, test.err)
				require.LessOrEqual(t, time.Since(from), test.most)
				var end *join.PeersError
				require.ErrorAs(t, err, &end)
				require.Len(t, end.Peers, len(o.Addresses))
				for i, p := range end.Peers {
					require.Equal(t, o.Addresses[i].HostPort, p.Address.HostPort)
					require.Contains(t, p.Answer, test.answer)
					require.Contains(t, err.Error(), "\n  "+p.Address.String()+"  ")
				}
				require.Contains(t, err.Error(), test.answer)
			})
		})
	}
}

// TestWaits: a join whose only peer has restarted says that it waits, and continues.
func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := randomWorld(t, 100)
		back := time.Now().Add(time.Minute)
		w.add(leaves(func(ctx context.Context, honest transport.Handler, r transport.Request) ([]byte, error) {
			if time.Now().Before(back) {
				return nil, errors.New("it is starting")
			}
			return honest.Serve(ctx, r)
		}))
		w.join(nodedbtest.NewMem())
		require.Contains(t, w.logs[len(w.logs)-1], "no data has arrived for 30s: waiting up to 2m0s\n  ")
	})
}

// TestCopies: two servers with the same ID are one peer. If the first one ends, the join continues
// with the other.
func TestCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := randomWorld(t, 100)
		honest := w.server()
		listen := func(hostPort string, change change) *transporttest.Listener {
			h := transport.HandlerFunc(func(ctx context.Context, r transport.Request) ([]byte, error) { return change(ctx, honest, r) })
			l, err := w.network.Listen(hostPort, transporttest.Config{ID: transporttest.ID(1), ChainID: chainID, Handler: h})
			require.NoError(t, err)
			w.peers = append(w.peers, l.Address())
			return l
		}
		var first *transporttest.Listener
		first = listen("first:1", leaves(func(ctx context.Context, _ transport.Handler, _ transport.Request) ([]byte, error) {
			<-time.After(5 * time.Second)
			go first.Close()
			<-ctx.Done()
			return nil, ctx.Err()
		}))
		t.Cleanup(listen("second:1", func(ctx context.Context, honest transport.Handler, r transport.Request) ([]byte, error) {
			if r.Method == iavlsync.MethodOffers {
				<-time.After(time.Second) // the first is connected
			}
			return honest.Serve(ctx, r)
		}).Close)
		from := time.Now()
		w.join(nodedbtest.NewMem())
		require.Less(t, time.Since(from), time.Minute)
	})
}
