package client_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/client"
	"github.com/starling-kv/starling/dsm/client/feed"
	"github.com/starling-kv/starling/internal/bubble"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/transporttest"
)

// run advances all storage nodes until stop is called.
func (w *world) run() (stop func()) {
	var stops []func()
	for _, n := range w.nodes {
		stops = append(stops, w.advance(n))
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// advance advances a storage node until stop is called.
func (w *world) advance(n *node) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.serving.Run(ctx) }()
	return func() {
		cancel()
		require.NoError(w.t, <-ended)
	}
}

// prove makes all nodes see headers up to a height.
func (w *world) prove(height int64) {
	w.proved.Store(height)
	for _, n := range w.nodes {
		if n.serving != nil { // it runs
			n.serving.Proved()
		}
	}
}

// Two validators send block updates. Each replica receives each update once, logs it when it is
// proved, and reports it as durable.
func TestUpdates(t *testing.T) {
	seed := seeds.New(t)
	inWorld(t, seed, 3, 2, func(w *world) {
		defer w.run()()
		var all []*client.Client
		for i := range 2 {
			s := w.source(func(o *client.Options) { o.Feed = testFeed() })
			defer func() { require.NoError(t, s.Close()) }()
			require.ErrorIs(t, s.Committed(1, w.full[0], nil, nil), client.ErrNotBegun)
			s.Validators(2, i)
			s.Begin(0)
			all = append(all, s)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		for height := int64(1); height <= 30; height++ {
			w.block(w.draw())
			for _, s := range all {
				require.NoError(t, s.Room(ctx))
				require.NoError(t, s.Committed(height, w.full[height], w.full[height-1], w.changes[height]))
				require.ErrorIs(t, s.Committed(height+1+int64(w.rng.IntN(2))*2-1, w.full[height], nil, nil), client.ErrGap)
			}
			w.prove(height - 1)
			bubble.Sleep(time.Second)
			for _, s := range all {
				require.GreaterOrEqual(t, s.Durable(), height-2)
			}
		}
		bubble.Sleep(5 * time.Second)
		for _, s := range all {
			st := s.Status()
			require.EqualValues(t, 29, st.Durable)
			require.EqualValues(t, 30, st.Head)
			require.Empty(t, st.Blocked)
			for _, r := range st.Ranges {
				for _, n := range r.Nodes {
					require.Equal(t, feed.InStep, n.State)
					require.EqualValues(t, 29, n.Durable)
				}
			}
		}
	})
}

// A block waits exactly while a range has no replica within the lag. A replica that is away for too
// long leaves the queue once another one is there.
func TestRoom(t *testing.T) {
	seed := seeds.New(t)
	inWorld(t, seed, 2, 2, func(w *world) {
		defer w.run()()
		s := w.source(func(o *client.Options) { o.Feed = testFeed() })
		defer func() { require.NoError(t, s.Close()) }()
		s.Begin(0)
		w.nodes[0].listener.Close()
		commit := func() {
			height := w.height() + 1
			w.block(w.draw())
			require.NoError(t, s.Room(context.Background()))
			require.NoError(t, s.Committed(height, w.full[height], w.full[height-1], w.changes[height]))
			bubble.Sleep(time.Second)
		}
		for range 12 {
			commit()
			w.prove(w.height() - 1)
			bubble.Sleep(time.Second)
		}
		require.Equal(t, feed.Lagging, s.Status().Ranges[0].Nodes[0].State)
		require.EqualValues(t, 11, s.Durable())
		for range 8 { // no further header is proved
			commit()
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.Error(t, s.Room(ctx))
		require.NotEmpty(t, s.Status().Blocked)
		time.AfterFunc(time.Second, func() { w.prove(w.height() - 1) })
		require.NoError(t, s.Room(context.Background()))
	})
}

// A block waits while the updates of several blocks cannot be encoded: each of them holds a
// version.
func TestRoomWhileUpdatesCannotBeEncoded(t *testing.T) {
	inWorld(t, 3, 2, 1, func(w *world) {
		s := w.source(nil)
		defer func() { require.NoError(t, s.Close()) }()
		s.Begin(0)
		// Without the paths to edges.
		p, err := w.full[0].Prune(func(avlstar.Subtree) bool { return true })
		require.NoError(t, err)
		defer p.Release()
		for height := range int64(4) {
			require.NoError(t, s.Room(context.Background()))
			require.NoError(t, s.Committed(height+1, p.Version(), nil, nil))
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.ErrorIs(t, s.Room(ctx), context.DeadlineExceeded)
		require.Empty(t, s.Status().Blocked)
		require.NotEmpty(t, s.Status().Failed)
	})
}

// A replica that accepts one byte of each part costs a few requests, not one for each byte.
func TestAReplicaThatTakesOneByteAtATime(t *testing.T) {
	inWorld(t, 4, 1, 1, func(w *world) {
		n, parts := w.nodes[0], atomic.Int64{}
		liar := transport.HandlerFunc(func(_ context.Context, r transport.Request) ([]byte, error) {
			if r.Method == dsm.MethodRanges {
				return dsm.EncodeClaims([]dsm.Claim{{Needs: 1}})
			}
			p, err := dsm.DecodeUpdatePart(r.Body)
			if err != nil {
				return nil, err
			}
			parts.Add(1)
			return dsm.UpdateAnswer{Needs: 1, Have: p.Offset + uint32(min(1, len(p.Part)))}.Encode(), nil
		})
		address := transport.Address{ID: transport.ID(n.name), HostPort: "liar:1"}
		listener, err := w.network.Listen(address.HostPort, transporttest.Config{ID: address.ID, ChainID: worldChain, Handler: liar})
		require.NoError(t, err)
		defer listener.Close()
		s := w.source(func(o *client.Options) { o.Map.Addresses[n.name] = address })
		s.Begin(0)
		w.block([]avlstar.Change{{Key: worldKey(1), Value: make([]byte, 1000)}})
		require.NoError(t, s.Committed(1, w.full[1], w.full[0], w.changes[1]))
		bubble.Sleep(10 * time.Second)
		require.NoError(t, s.Close())
		require.Positive(t, parts.Load())
		require.Less(t, parts.Load(), int64(20))
	})
}
