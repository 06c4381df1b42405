package snapshot

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/hedge"
	"github.com/starling-kv/starling/transport"
)

// Rate fetches the largest chunk of a snapshot and returns the rate of the first peer that sent it,
// in bytes per second, or 0 if none did.
func (f *Finder) Rate(ctx context.Context, c *Choice) (rate float64) {
	if len(c.Manifest.Entries) == 0 {
		return 0
	}
	largest := slices.MaxFunc(c.Manifest.Entries, func(a, b avlstar.Entry) int { return cmp.Compare(a.Root.Bytes, b.Root.Bytes) })
	k := slices.Index(c.Manifest.Entries, largest)
	var conns []transport.Conn
	for _, p := range f.o.Peers.Connected() {
		if p.Status.Has(c.Height, uint32(k)) {
			conns = append(conns, p.Conn)
		}
	}
	rand.Shuffle(len(conns), func(a, b int) { conns[a], conns[b] = conns[b], conns[a] })
	received := make(map[transport.Conn]*atomic.Int64, len(conns))
	for _, conn := range conns {
		received[conn] = new(atomic.Int64)
	}
	s := hedge.Search[transport.Conn, time.Duration]{
		Policy: manifestPolicy,
		Go:     f.o.Go,
		More:   func() ([]transport.Conn, <-chan struct{}) { return conns, nil },
		Ask: func(ctx context.Context, conn transport.Conn) (time.Duration, error) {
			began := time.Now()
			err := f.chunkFrom(ctx, c, k, conn, received[conn])
			return time.Since(began), err
		},
		Received: func(conn transport.Conn) int64 { return received[conn].Load() },
		Proved: func(_ transport.Conn, took time.Duration) {
			rate = float64(largest.Root.Bytes) / max(took, time.Millisecond).Seconds()
		},
	}
	if err := s.Run(ctx); err != nil {
		return 0
	}
	return rate
}
