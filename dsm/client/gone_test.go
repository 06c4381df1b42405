package client_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/bubble"
)

// A state is gone if part of it has changed since the heights that replicas serve. Gone reports it,
// but not while a replica might still have it, nor before a fetch has failed.
func TestGone(t *testing.T) {
	inWorld(t, 12, 2, 2, func(w *world) {
		s := w.claimed()
		defer func() { require.NoError(t, s.Close()) }()
		h := w.join(s, 0, 4)
		defer func() { h.partial.Release() }()
		var changes []avlstar.Change
		for i := range worldKeys {
			changes = append(changes, avlstar.Change{Key: worldKey(i), Value: []byte("new")})
		}
		w.block(changes)
		for range 10 { // 8 heights are served
			w.block(nil)
		}
		fetch := func() {
			wants := []avlstar.Want{{Key: worldKey(1)}, {Key: worldKey(599)}}
			lacking, held := h.partial.Version().Missing(wants)
			require.NotEmpty(t, held)
			_, err := s.Fetch(context.Background(), 1, lacking, avlstar.Below{Depth: 1 << 20, Held: held})
			require.Error(t, err)
		}
		w.nodes[0].listener.Close() // one of the two replicas of the first range
		w.feed(12)
		bubble.Sleep(time.Minute) // claims are polled
		_, is := s.Gone(1)
		require.False(t, is)
		fetch()
		gone, is := s.Gone(1)
		require.True(t, is)
		require.Equal(t, w.ranges.Shard(1).Range, gone.Range, "the first range has a replica of which nothing was heard since")
		require.Equal(t, int64(5), gone.Oldest)
		require.Zero(t, time.Since(gone.Since).Round(10*time.Second))
		bubble.Sleep(time.Minute)
		fetch()
		again, _ := s.Gone(1)
		require.Equal(t, gone, again, "it is known since the first time")
		_, is = s.Gone(12)
		require.False(t, is)
	})
}
