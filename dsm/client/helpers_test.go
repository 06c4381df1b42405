package client_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm/client"
	"github.com/starling-kv/starling/dsm/client/ask"
	"github.com/starling-kv/starling/dsm/server/witness"
	"github.com/starling-kv/starling/internal/bubble"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/transporttest"
)

// another is a validator that serves a state.
type another struct {
	conn  transport.Conn
	asked atomic.Int64
}

// Version implements witness.Versions for one state, that of the last block.
func (s stateOf) Version(height int64) (*avlstar.Version, bool) {
	if height != s.height {
		return nil, false
	}
	s.v.Retain()
	return s.v, true
}

type stateOf struct {
	v      *avlstar.Version
	height int64
}

// honest returns a handler that serves v.
func honest(v *avlstar.Version, height int64) transport.Handler {
	mux := new(transport.Mux)
	witness.New(witness.Options{Versions: stateOf{v, height}, Making: make(chan struct{}, 1)}).Register(mux)
	return mux
}

var silent = transport.HandlerFunc(func(ctx context.Context, _ transport.Request) ([]byte, error) {
	<-ctx.Done()
	return nil, ctx.Err()
})

// others connects to nodes that are not storage nodes. It returns a function that ends all of them.
func (w *world) others(handlers ...transport.Handler) (all []*another, end func()) {
	var ends []func()
	for i, handler := range handlers {
		a := new(another)
		counted := transport.HandlerFunc(func(ctx context.Context, r transport.Request) ([]byte, error) {
			a.asked.Add(1)
			return handler.Serve(ctx, r)
		})
		l, err := w.network.Listen(fmt.Sprintf("other%d:1", i), transporttest.Config{ID: transporttest.ID(900 + i), ChainID: worldChain, Handler: counted})
		require.NoError(w.t, err)
		a.conn, err = w.network.Dialer(transporttest.Config{ID: transporttest.ID(1000), ChainID: worldChain}).Dial(context.Background(), l.Address())
		require.NoError(w.t, err)
		all = append(all, a)
		ends = append(ends, func() {
			require.NoError(w.t, a.conn.Close())
			l.Close()
		})
	}
	return all, func() {
		for _, f := range ends {
			f()
		}
	}
}

// If no replica of a range answers, validators that have the wanted nodes serve them in time for a
// proposal. Validators that do not have them, or send invalid answers, are worked around.
func TestOthers(t *testing.T) {
	wants := []avlstar.Want{{Key: worldKey(1)}, {Key: worldKey(300)}, {Key: worldKey(599)}}
	half := func(w *world, above bool) transport.Handler {
		p, err := w.full[1].Prune(func(s avlstar.Subtree) bool {
			if above {
				return s.After != nil && string(s.After) <= string(worldKey(300))
			}
			return string(s.First) >= string(worldKey(300))
		})
		require.NoError(w.t, err)
		t.Cleanup(p.Release)
		return honest(p.Version(), 1)
	}
	all := func(w *world) transport.Handler { return honest(w.full[1], 1) }
	// later answers after nodes that answer at once, so that their answers are judged before the
	// fetch ends.
	later := func(w *world) transport.Handler {
		h := all(w)
		return transport.HandlerFunc(func(ctx context.Context, r transport.Request) ([]byte, error) {
			bubble.Sleep(10 * time.Millisecond)
			return h.Serve(ctx, r)
		})
	}
	liar := func(*world) transport.Handler {
		return transport.HandlerFunc(func(context.Context, transport.Request) ([]byte, error) { return []byte("multiproof"), nil })
	}
	for name, c := range map[string]struct {
		others []func(w *world) transport.Handler
		within time.Duration // of virtual time, with all storage nodes silent
		lies   int
	}{
		"it has all of it": {[]func(w *world) transport.Handler{all}, 500 * time.Millisecond, 0},
		"silent ones first": {[]func(w *world) transport.Handler{
			func(*world) transport.Handler { return silent }, func(*world) transport.Handler { return silent },
			func(*world) transport.Handler { return silent }, all,
		}, time.Second, 0}, // the time limit of a proposal
		"one is faulty": {[]func(w *world) transport.Handler{liar, later}, 500 * time.Millisecond, 1},
		"each has half of it": {[]func(w *world) transport.Handler{
			func(w *world) transport.Handler { return half(w, true) }, func(w *world) transport.Handler { return half(w, false) },
		}, 2 * time.Second, 0},
		"another height": {[]func(w *world) transport.Handler{func(w *world) transport.Handler { return honest(w.full[0], 0) }, all}, 500 * time.Millisecond, 0},
	} {
		for _, dead := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, storage nodes dead %v", name, dead), func(t *testing.T) {
				inWorld(t, 10, 2, 1, func(w *world) {
					w.block(w.draw())
					w.feed(1)
					var handlers []transport.Handler
					for _, o := range c.others {
						handlers = append(handlers, o(w))
					}
					others, end := w.others(handlers...)
					defer end()
					s := w.source(func(o *client.Options) {
						o.Helpers = func() (conns []transport.Conn) {
							for _, a := range others {
								conns = append(conns, a.conn)
							}
							return conns
						}
					})
					defer func() { require.NoError(t, s.Close()) }()
					h := w.join(s, 0, 4)
					defer func() { h.partial.Release() }()
					for i, n := range w.nodes {
						if w.silence(i); dead {
							n.listener.Close()
						}
					}
					began := time.Now()
					h.read(wants)
					require.Less(t, time.Since(began), c.within)
					liars := s.Status().Liars
					require.Equal(t, c.lies > 0, len(liars) > 0, "%v", liars)
					if c.lies == 0 {
						return
					}
					require.Equal(t, [2]string{"others", string(ask.Undecodable)}, [2]string{string(liars[0].Node), string(liars[0].Verdict)})
					asked := others[0].asked.Load()
					h.read([]avlstar.Want{{Key: worldKey(100)}, {Key: worldKey(500)}})
					require.Equal(t, asked, others[0].asked.Load(), "the faulty node is asked again")
				})
			})
		}
	}
}

// If storage nodes answer, no other node is asked.
func TestOthersAreSpared(t *testing.T) {
	inWorld(t, 11, 2, 1, func(w *world) {
		w.block(w.draw())
		w.feed(1)
		others, end := w.others(honest(w.full[1], 1))
		defer end()
		s := w.source(func(o *client.Options) {
			o.Helpers = func() []transport.Conn { return []transport.Conn{others[0].conn} }
		})
		defer func() { require.NoError(t, s.Close()) }()
		h := w.join(s, 0, 4)
		defer func() { h.partial.Release() }()
		h.read([]avlstar.Want{{Key: worldKey(1)}, {Key: worldKey(300)}, {Key: worldKey(599)}})
		require.Zero(t, others[0].asked.Load())
	})
}
