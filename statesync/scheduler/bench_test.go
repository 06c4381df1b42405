package scheduler

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkItem measures the whole life of an item with 100 proven peers: Ask, two Progress,
// Received, Verified. It must not grow with the number of waiting items; in tight, the memory is
// always full.
func BenchmarkItem(b *testing.B) {
	const size = 600_000
	for _, bc := range []struct {
		name   string
		items  int
		memory int64
		shards uint32 // number of shards, one per peer; 0: each peer has everything
	}{
		{"items=1000", 1_000, 1 << 40, 0},
		{"items=60000", 60_000, 1 << 40, 0},
		{"items=600000", 600_000, 1 << 40, 0},
		{"items=60000/tight", 60_000, 200 * size, 0},
		{"items=60000/shards=4", 60_000, 1 << 40, 4},
		{"items=600000/shards=4", 600_000, 1 << 40, 4},
	} {
		b.Run(bc.name, func(b *testing.B) {
			s, now := New(bc.memory, 2), time.Duration(0)
			var asks []Ask
			step := func(e Event) {
				for _, a := range s.Step(now, e) {
					if a, is := a.(Ask); is {
						asks = append(asks, a)
					}
				}
			}
			for i := range 100 {
				id := PeerID(fmt.Sprintf("%02d", i))
				step(PeerUp{id})
				has := PeerHas{Peer: id, Groups: []Group{1}}
				if bc.shards > 0 {
					shard, at := uint32(bc.items)/bc.shards, uint32(i)%bc.shards
					has = PeerHas{Peer: id, Parts: []Part{{1, []Span{{at * shard, (at + 1) * shard}}}}}
				}
				step(has)
			}
			next := ItemID(0)
			add := func(n int) {
				items := make([]Item, n)
				for i := range items {
					next++
					items[i] = Item{ID: next, Group: 1, At: uint32(int(next) % bc.items), Bytes: size + uint64(next)%1000, Exact: true}
				}
				step(Add{items})
			}
			add(bc.items)
			step10 := 0
			b.ReportAllocs()
			for b.Loop() {
				if step10++; step10%10 == 0 { // so that the number of waiting items is constant
					add(10)
				}
				var a Ask
				for s.requests[a.Request] == nil { // some are cancelled
					a, asks = asks[0], asks[1:]
				}
				bytes := s.items[a.Item].Bytes
				now += 100 * time.Microsecond
				step(Progress{a.Request, bytes / 3})
				step(Progress{a.Request, bytes / 2})
				step(Received{a.Request, bytes})
				step(Verified{a.Request})
			}
			if err := s.checkInvariants(); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(s.inFlight), "in-flight")
		})
	}
}
