package client_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/client/ask"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/transport"
)

// together puts all ranges on each of n further nodes, and on no other, and returns these nodes.
func (w *world) together(n int) (nodes []*node) {
	var of []dsm.Placement
	for i := range w.ranges.Len() {
		of = append(of, dsm.Placement{Range: w.ranges.Shard(i).Range})
	}
	for range n {
		added := w.add(of[0].Range)
		added.of = nil
		for i := range of {
			added.of = append(added.of, of[i].Range)
			of[i].Replicas = append(of[i].Replicas, added.name)
		}
		w.open(added, w.height())
		nodes = append(nodes, added)
	}
	var err error
	w.ranges, err = dsm.NewRanges(of)
	require.NoError(w.t, err)
	return nodes
}

// spread returns a want in each range.
func (w *world) spread() (wants []avlstar.Want) {
	for i := range w.ranges.Len() {
		wants = append(wants, avlstar.Want{Key: append(slices.Clone(w.ranges.Shard(i).Range.First), '0')})
	}
	return wants
}

// Blocks are executed on answers for several ranges as on those for one.
func TestBlocksOnNodesOfSeveralRanges(t *testing.T) {
	rng := seeds.Rand(t)
	for _, depth := range []int{0, 4, 12} {
		for _, nodes := range []int{1, 3} {
			seed := rng.Uint64()
			t.Run(fmt.Sprintf("depth %d, %d nodes", depth, nodes), func(t *testing.T) {
				inWorld(t, seed, 6, 1, func(w *world) {
					w.together(nodes)
					blocksBehind(w, depth)
				})
			})
		}
	}
}

// A node with several ranges gets one request for wants in all of them.
func TestOneRequestForSeveralRanges(t *testing.T) {
	inWorld(t, 21, 6, 1, func(w *world) {
		node := w.together(1)[0]
		s := w.claimed()
		defer func() { require.NoError(t, s.Close()) }()
		h := w.join(s, 3, 4)
		defer func() { h.partial.Release() }()
		lacking, held := h.partial.Version().Missing(w.spread())
		require.Greater(t, len(lacking), 3)
		multiproofs, err := s.Fetch(context.Background(), 1, lacking, avlstar.Below{Depth: 1 << 20, Held: held})
		require.NoError(t, err)
		require.Len(t, multiproofs, 1)
		require.EqualValues(t, 1, node.asked.Load())
		next, _, err := h.partial.Graft(multiproofs...)
		require.NoError(t, err)
		h.partial.Release()
		h.partial = next
		lacking, _ = h.partial.Version().Missing(w.spread())
		require.Empty(t, lacking)
	})
}

// A node that refuses requests for several ranges, as earlier builds do, gets one for each, and is
// not asked for several again while it is connected.
func TestNodeThatRefusesSeveralRanges(t *testing.T) {
	inWorld(t, 22, 6, 1, func(w *world) {
		w.together(1)
		s := w.claimed()
		defer func() { require.NoError(t, s.Close()) }()
		h := w.join(s, 0, 4)
		defer func() { h.partial.Release() }()
		refused := 0
		w.lie(len(w.nodes)-1, func(_ context.Context, r transport.Request, honest []byte) ([]byte, error) {
			m, err := dsm.DecodeWitness(r.Body)
			if err != nil {
				return nil, err
			}
			if w.ranges.Index(m.Wants[0].Least()) != w.ranges.Index(m.Wants[len(m.Wants)-1].Least()) {
				refused++
				return nil, transport.ErrRefused
			}
			return honest, nil
		})
		h.read(w.spread())
		h.read([]avlstar.Want{{Key: worldKey(1)}, {Key: worldKey(300)}, {Key: worldKey(598)}})
		require.Equal(t, 1, refused)
		require.Empty(t, s.Status().Liars)
	})
}

// An answer that leaves out one of several ranges is a fault of its node for that range. The others
// have arrived.
func TestLieAboutOneOfSeveralRanges(t *testing.T) {
	inWorld(t, 23, 6, 1, func(w *world) {
		nodes := w.together(2)
		s := w.claimed()
		defer func() { require.NoError(t, s.Close()) }()
		var left atomic.Int64 // nodes answer at the same time
		left.Store(-1)
		for i, n := range nodes {
			w.lie(len(w.nodes)-len(nodes)+i, func(_ context.Context, r transport.Request, honest []byte) ([]byte, error) {
				m, b := below(r)
				if len(m.Wants) < 3 || !left.CompareAndSwap(-1, int64(w.ranges.Index(m.Wants[1].Key))) {
					return honest, nil
				}
				t.Logf("%s leaves out range %d", n.name, left.Load())
				return w.multiproof(1, slices.Delete(m.Wants, 1, 2), b), nil
			})
		}
		h := w.join(s, 0, 4)
		defer func() { h.partial.Release() }()
		h.read(w.spread())
		require.GreaterOrEqual(t, left.Load(), int64(0))
		liars := s.Status().Liars
		require.Len(t, liars, 1)
		require.Equal(t, ask.Omits, liars[0].Verdict)
		require.Equal(t, w.ranges.Shard(int(left.Load())).Range, liars[0].Range)
	})
}
