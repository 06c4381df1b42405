package client_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/client"
	"github.com/starling-kv/starling/dsm/client/ask"
	"github.com/starling-kv/starling/internal/bubble"
	"github.com/starling-kv/starling/transport"
)

// silence makes a node never answer a witness request.
func (w *world) silence(node int) {
	w.lie(node, func(ctx context.Context, _ transport.Request, _ []byte) ([]byte, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
}

func (w *world) lie(node int, f func(ctx context.Context, r transport.Request, honest []byte) ([]byte, error)) {
	w.nodes[node].lie.Store(&f)
}

// multiproof returns the answer of a node that has the whole state of a height.
func (w *world) multiproof(height int64, wants []avlstar.Want, below avlstar.Below) []byte {
	b, err := w.full[height].Multiproof(wants, below)
	require.NoError(w.t, err)
	return b
}

func below(r transport.Request) (dsm.Witness, avlstar.Below) {
	m, err := dsm.DecodeWitness(r.Body)
	if err != nil {
		panic(err)
	}
	b := avlstar.Below{Depth: int(m.Depth), Held: map[avlstar.Hash]avlstar.Span{}}
	for _, h := range m.Held {
		b.Held[h] = avlstar.Span{}
	}
	return m, b
}

// Each invalid answer is detected, reported with node, range and reason, and worked around.
// Unrequested nodes do not pass.
func TestLies(t *testing.T) {
	for _, test := range []struct {
		name    string
		depth   int         // of the validator's tree
		verdict ask.Verdict // empty: the answer is acceptable
		lie     func(w *world, r transport.Request, honest []byte) ([]byte, error)
	}{
		{"no multiproof", 0, ask.Undecodable, func(*world, transport.Request, []byte) ([]byte, error) { return []byte("multiproof"), nil }},
		{"damaged", 2, "", func(_ *world, _ transport.Request, honest []byte) ([]byte, error) {
			b := append([]byte(nil), honest...)
			b[len(b)-1] ^= 1
			return b, nil
		}},
		{"too long", 0, ask.TooLong, func(*world, transport.Request, []byte) ([]byte, error) { return make([]byte, 9<<20), nil }},
		{"another tree", 2, ask.OpensNothing, func(w *world, _ transport.Request, _ []byte) ([]byte, error) {
			return w.multiproof(2, []avlstar.Want{{Key: worldKey(1)}}, avlstar.Below{}), nil
		}},
		{"everything", 0, ask.Unasked, func(w *world, r transport.Request, _ []byte) ([]byte, error) {
			_, b := below(r)
			return w.multiproof(2, []avlstar.Want{{Range: true}}, b), nil
		}},
		{"more", 2, ask.Unasked, func(w *world, r transport.Request, _ []byte) ([]byte, error) {
			m, b := below(r)
			wants := []avlstar.Want{{Key: m.Wants[0].Key}, {Key: worldKey(599)}}
			b.Depth = 3
			return w.multiproof(2, wants, b), nil
		}},
		{"omission", 0, ask.Omits, func(w *world, r transport.Request, _ []byte) ([]byte, error) {
			_, b := below(r)
			return w.multiproof(2, []avlstar.Want{{}, {Key: worldKey(599)}}, b), nil
		}},
		{"nothing", 0, "", func(*world, transport.Request, []byte) ([]byte, error) { return []byte{1}, nil }},
		{"too large", 2, "", func(*world, transport.Request, []byte) ([]byte, error) { return nil, nil }},
		{"gone", 0, "", func(*world, transport.Request, []byte) ([]byte, error) { return nil, transport.ErrGone }},
		{"busy", 0, "", func(*world, transport.Request, []byte) ([]byte, error) { return nil, transport.ErrBusy }},
		{"refused", 0, "", func(*world, transport.Request, []byte) ([]byte, error) { return nil, transport.ErrRefused }},
		{"failed", 0, "", func(*world, transport.Request, []byte) ([]byte, error) { return nil, errTest }},
	} {
		t.Run(test.name, func(t *testing.T) {
			inWorld(t, 7, 1, 2, func(w *world) { lies(w, test.depth, test.verdict, test.lie) })
		})
	}
}

func lies(w *world, depth int, verdict ask.Verdict, lie func(w *world, r transport.Request, honest []byte) ([]byte, error)) {
	w.block(w.draw())
	w.block(w.draw())
	w.feed(2)
	m := client.NopMetrics()
	s := w.source(func(o *client.Options) { o.Metrics = m })
	defer func() { require.NoError(w.t, s.Close()) }()
	_, err := s.Claims(context.Background())
	require.NoError(w.t, err)
	h := w.join(s, depth, 4)
	defer func() { h.partial.Release() }()
	w.lie(0, func(_ context.Context, r transport.Request, honest []byte) ([]byte, error) { return lie(w, r, honest) })
	wants := []avlstar.Want{{Key: worldKey(200)}, {Key: worldKey(300)}, {Key: worldKey(301)}}
	for range 3 { // independent of the order in which nodes are asked
		lacking, held := h.partial.Version().Missing(wants)
		multiproofs, _ := s.Fetch(context.Background(), 2, lacking, avlstar.Below{Depth: 1 << 20, Held: held}) //nolint:errcheck // the multiproofs are checked below
		for _, b := range multiproofs {
			require.LessOrEqual(w.t, b.Leaves(), len(wants))
			for _, root := range b.Roots() {
				require.Contains(w.t, held, root.Hash)
			}
		}
	}
	h.read(wants)
	require.NotZero(w.t, w.nodes[0].asked.Load(), "the faulty node was not asked")
	st := s.Status()
	if verdict == "" {
		return
	}
	require.NotEmpty(w.t, st.Liars)
	for _, l := range st.Liars {
		require.Equal(w.t, [2]string{string(w.nodes[0].name), string(verdict)}, [2]string{string(l.Node), string(l.Verdict)})
	}
	require.NotZero(w.t, sum(w.t, m.Lies, string(w.nodes[0].name), "[, )", string(verdict)))
}

// A slow node costs less than its latency: another node is asked in parallel, and first the next
// time.
func TestSlowNode(t *testing.T) {
	inWorld(t, 8, 1, 2, func(w *world) {
		w.block(w.draw())
		w.feed(1)
		s := w.source(nil)
		defer func() { require.NoError(t, s.Close()) }()
		h := w.join(s, 0, 4)
		defer func() { h.partial.Release() }()
		w.silence(0)
		began := time.Now()
		for i := range 20 {
			h.read([]avlstar.Want{{Key: worldKey(30 * i)}})
		}
		require.Less(t, time.Since(began), 2*ask.DefaultPolicy().Slow)
		require.Less(t, w.nodes[0].asked.Load(), int64(5))
	})
}

// A replica that is behind is asked last; one that comes back is used.
func TestStaleAndBack(t *testing.T) {
	inWorld(t, 9, 1, 2, func(w *world) {
		w.block(w.draw())
		w.feed(1)
		w.nodes[0].listener.Close()
		s := w.source(nil)
		defer func() { require.NoError(t, s.Close()) }()
		h := w.join(s, 0, 4)
		defer func() { h.partial.Release() }()
		h.read([]avlstar.Want{{Key: worldKey(1)}})
		require.Zero(t, w.nodes[0].asked.Load())
		for _, r := range w.nodes[0].replicas {
			require.NoError(t, r.Close())
		}
		w.nodes[0].replicas = nil
		w.open(w.nodes[0], 0) // its disk is lost: it restarts from the first state
		w.nodes[1].listener.Close()
		bubble.Sleep(5 * time.Second)
		require.True(t, s.Status().Ranges[0].Nodes[0].Connected)
		lacking, held := h.partial.Version().Missing([]avlstar.Want{{Key: worldKey(400)}})
		_, err := s.Fetch(context.Background(), 1, lacking, avlstar.Below{Depth: 1 << 20, Held: held})
		require.ErrorContains(t, err, fmt.Sprintf("%s: gone", w.nodes[0].name))
	})
}
