package client_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm/client"
	"github.com/starling-kv/starling/dsm/client/ask"
	"github.com/starling-kv/starling/internal/bubble"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/transport"
)

func sumOf(b []byte) [32]byte { return sha256.Sum256(b) }

// A validator with the upper tree and recent changes executes blocks on answers of storage nodes
// that are two blocks behind, and computes the same app hashes as the full tree.
func TestBlocksOnStorageNodesThatAreBehind(t *testing.T) {
	rng := seeds.Rand(t)
	for _, depth := range []int{0, 4, 12} {
		for _, shards := range []int{1, 3, 8} {
			seed := rng.Uint64()
			t.Run(fmt.Sprintf("depth %d, %d ranges", depth, shards), func(t *testing.T) {
				inWorld(t, seed, shards, 1, func(w *world) { blocksBehind(w, depth) })
			})
		}
	}
}

func blocksBehind(w *world, depth int) {
	const blocks, behind = 30, 2
	m := client.NopMetrics()
	s := w.source(func(o *client.Options) { o.Metrics = m })
	defer func() { require.NoError(w.t, s.Close()) }()
	for range 3 {
		w.block(w.draw())
	}
	w.feed(3)
	h := w.join(s, depth, 4)
	defer func() { h.partial.Release() }()
	for height := int64(4); height <= blocks; height++ {
		w.feed(max(3, height-1-behind))
		_, err := s.Claims(context.Background())
		require.NoError(w.t, err)
		var wants []avlstar.Want
		for range w.rng.IntN(20) {
			wants = append(wants, avlstar.Want{Key: worldKey(w.rng.IntN(worldKeys)), Deleted: w.rng.IntN(3) == 0})
		}
		if w.rng.IntN(3) == 0 {
			from := w.rng.IntN(worldKeys)
			wants = append(wants, avlstar.Want{Key: worldKey(from), Range: true, After: worldKey(from + 1 + w.rng.IntN(20))})
		}
		if w.rng.IntN(3) == 0 {
			wants = append(wants, avlstar.Want{Key: worldKey(w.rng.IntN(worldKeys)), Next: true})
		}
		for _, c := range w.changes[height-1] { // includes keys that were just deleted
			if w.rng.IntN(4) == 0 {
				wants = append(wants, avlstar.Want{Key: c.Key})
			}
		}
		h.read(wants)
		h.execute(w.block(w.draw()))
		h.shed()
	}
	w.t.Logf("%d fetches, %v steps to keys before", h.fetches, sum(w.t, m.Elsewhere))
}

// Fetch names a range that no node serves; nothing else is known of the range.
func TestRangeOfNobody(t *testing.T) {
	inWorld(t, 1, 3, 2, func(w *world) {
		s := w.claimed()
		defer func() { require.NoError(t, s.Close()) }()
		h := w.join(s, 2, 4)
		defer func() { h.partial.Release() }()
		w.nodes[2].listener.Close()
		w.nodes[3].listener.Close()
		var wants []avlstar.Want
		for i := range 3 {
			wants = append(wants, avlstar.Want{Key: append(w.ranges.Shard(i).Range.First, '0')})
		}
		lacking, held := h.partial.Version().Missing(wants)
		require.Len(t, lacking, 3)
		multiproofs, err := s.Fetch(context.Background(), 1, lacking, avlstar.Below{Depth: 1 << 20, Held: held})
		require.ErrorIs(t, err, client.ErrUnserved)
		require.ErrorContains(t, err, w.ranges.Shard(1).Range.String())
		require.Len(t, multiproofs, 2)
		synctest.Wait() // until the closed connection is noticed
		st := s.Status()
		require.Len(t, st.Waits, 1)
		require.Equal(t, w.ranges.Shard(1).Range, st.Waits[0].Range)
		require.False(t, st.Ranges[1].Nodes[0].Connected)
		require.True(t, st.Ranges[0].Nodes[0].Connected)
		_, err = s.Fetch(context.Background(), 1, lacking[1:2], avlstar.Below{Depth: 1 << 20, Held: held})
		require.ErrorIs(t, err, client.ErrUnserved)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err = s.Claims(ctx)
		require.ErrorContains(t, err, w.ranges.Shard(1).Range.String())
		_, err = s.Upper(ctx, 1, w.full[1].AppHash(), 2)
		require.ErrorContains(t, err, w.ranges.Shard(1).Range.String())
	})
}

// A fetch ends soon after its context ends, whatever nodes are silent, and when the Client is
// closed.
func TestFetchEnds(t *testing.T) {
	inWorld(t, 2, 1, 1, func(w *world) {
		w.block(w.draw())
		w.feed(1)
		s := w.source(nil)
		h := w.join(s, 0, 4)
		defer func() { h.partial.Release() }()
		w.silence(0)
		lacking, held := h.partial.Version().Missing([]avlstar.Want{{Key: worldKey(1)}})
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := s.Fetch(ctx, 1, lacking, avlstar.Below{Depth: 1 << 20, Held: held})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(began))
		ended := make(chan error)
		go func() {
			_, err := s.Fetch(context.Background(), 1, lacking, avlstar.Below{Depth: 1 << 20, Held: held})
			ended <- err
		}()
		time.AfterFunc(time.Second, func() { require.NoError(t, s.Close()) })
		require.Error(t, <-ended)
		require.Equal(t, 2*time.Second, time.Since(began))
		_, err = s.Fetch(context.Background(), 1, lacking, avlstar.Below{Depth: 1 << 20, Held: held})
		require.ErrorIs(t, err, client.ErrClosed)
		require.ErrorIs(t, s.Room(context.Background()), client.ErrClosed)
	})
}

// A fetch ends once MaxBytes have arrived.
func TestFetchHasALimit(t *testing.T) {
	inWorld(t, 13, 1, 1, func(w *world) {
		w.block(w.draw())
		w.feed(1)
		policy := ask.DefaultPolicy()
		policy.Wants = 20
		s := w.source(func(o *client.Options) { o.Ask = policy })
		defer func() { require.NoError(t, s.Close()) }()
		h := w.join(s, 0, 4)
		defer func() { h.partial.Release() }()
		var requests atomic.Int64
		w.lie(0, func(ctx context.Context, _ transport.Request, honest []byte) ([]byte, error) {
			select {
			case <-bubble.After(time.Duration(requests.Add(1)-1) * time.Millisecond): // staggered
				return honest, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
		var wants []avlstar.Want
		for i := range worldKeys {
			wants = append(wants, avlstar.Want{Key: worldKey(i)})
		}
		lacking, held := h.partial.Version().Missing(wants)
		size := func(most int) (bytes int) {
			requests.Store(0)
			multiproofs, _ := s.Fetch(context.Background(), 1, lacking, avlstar.Below{Depth: 1 << 20, Held: held, MaxBytes: most}) //nolint:errcheck // some of it is missing
			for _, b := range multiproofs {
				bytes += b.Bytes()
			}
			return bytes
		}
		one := size(1)
		require.Positive(t, one)
		three := size(3 * one)
		require.GreaterOrEqual(t, three, 3*one)
		require.Less(t, three, 5*one)
	})
}
