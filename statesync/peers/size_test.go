package peers

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/statesync/scheduler"
	"github.com/starling-kv/starling/transport"
)

// However many advertisers and hosts are charged, few charges are remembered. The operator's peers,
// which answer for all of them, and nodes being tried are not forgotten.
func TestChargesAreBounded(t *testing.T) {
	s := newShelf(t)
	s.learns(operators(0), 1, hostAt(1, 1))
	s.learns(operators(1), 2, hostAt(2, 1))
	tried := s.dial()
	require.Len(t, tried, 2)
	for i := range 10 * maxAccounts {
		by := advertiser{idOf(100 + i), operators(0).id, 1}
		s.charge(s.now, by, vainCost)
		accountOf(s.hosts, groupsOf(hostAt(i, 1))[0]).spent.add(s.now, forgiven, 1)
	}
	require.Equal(t, [2]int{maxAccounts, maxAccounts}, [2]int{len(s.advertisers), len(s.hosts)})
	root := s.advertisers[string(operators(0).id)]
	require.NotNil(t, root)
	require.Equal(t, 1, root.open)
	require.Greater(t, root.spent.amount, float64(maxAccounts)*vainCost)
	require.NotNil(t, s.advertisers[string(operators(1).id)], "its node is being tried, though it is charged for nothing")
	require.NotNil(t, s.hosts[groupsOf(hostAt(10*maxAccounts-1, 1))[0]], "the newest is charged")
}

// The most that strangers can make a Peers remember takes at most MaxBytes.
func TestMaxBytes(t *testing.T) {
	rng := seeds.Rand(t)
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	p := New(Options{Logger: log.NewNopLogger(), Dialer: unanswered{}, Random: rand.NewPCG(rng.Uint64(), 0)})
	defer p.Close()
	for i := range maxBanned + 10 {
		p.Ban(idOf(i), statesync.BanChunk, strings.Repeat("x", 2*maxReason))
	}
	p.mu.Lock()
	b, now := p.mu.book, time.Now()
	// An address of almost the greatest length.
	name := func(i int) string { return fmt.Sprintf("%0100d.example:26666", i) }
	for i := range maxAddresses + 10 {
		for k := range maxPerID {
			b.learn(now, advertiser{idOf(10_000 + maxPerID*i + k), operators(k).id, 1}, []transport.Address{{ID: idOf(50_000 + i), HostPort: name(i)}}, nobody)
		}
	}
	for i := range maxAccounts + 10 {
		b.charge(now, advertiser{idOf(100_000 + i), operators(0).id, 1}, 1)
		accountOf(b.hosts, name(i)).spent.add(now, forgiven, 1)
	}
	for i := range maxConnections {
		s := protocol.Status{Snapshots: make([]int64, 256)}
		for h := range 33 {
			part := statesync.Part{Height: int64(h + 1), Chunks: 1 << 30}
			for k := range 64 {
				part.Spans = append(part.Spans, scheduler.Span{From: uint32(2 * k), To: uint32(2*k + 1)})
			}
			s.Parts = append(s.Parts, part)
		}
		parts, err := protocol.DecodeParts(protocol.EncodeParts(s.Parts))
		require.NoError(t, err)
		s.Parts = parts
		p.mu.up[idOf(200_000+i)] = &peer{status: s, known: true}
	}
	used := heap() - before
	p.mu.Unlock() // then it draws addresses
	t.Logf("%d KiB of the heap, %d KiB counted, the bound is %d KiB", used>>10, p.Bytes()>>10, MaxBytes>>10)
	require.LessOrEqual(t, used, int64(MaxBytes))
	require.Equal(t, int64(MaxBytes), p.Bytes(), "all parts are full")
	require.Greater(t, used, int64(MaxBytes/4), "the bound is not far from what is possible")
	p.mu.Lock()
	clear(p.mu.up) // they have no connections
	p.mu.Unlock()
}
