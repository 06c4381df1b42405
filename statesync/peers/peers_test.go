package peers

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/transport"
)

// However many peers are banned, few bans are remembered, with few bytes of each reason; all are
// counted.
func TestBansAreBounded(t *testing.T) {
	reported := 0
	p := New(Options{Logger: log.NewNopLogger(), Dialer: unanswered{}, Banned: func(transport.ID, statesync.BanReason) { reported++ }})
	defer p.Close()
	const n = maxBanned + 100
	for i := range n {
		p.Ban(idOf(i), statesync.BanChunk, strings.Repeat("x", 10*maxReason))
		p.Ban(idOf(i), statesync.BanChunk, "again")
	}
	_, banned := p.Addresses()
	require.Len(t, banned, maxBanned)
	require.NotContains(t, banned, idOf(0), "the oldest is forgotten")
	require.Contains(t, banned, idOf(n-1))
	for _, reason := range banned {
		require.LessOrEqual(t, len(reason), maxReason)
	}
	_, count := p.Count()
	require.Equal(t, n, count)
	require.Equal(t, n, reported, "each once")
}

// ended is a connection that has ended.
type ended struct {
	transport.Conn
	at transport.Address
}

func (c ended) Remote() transport.Address                            { return c.at }
func (c ended) Call(context.Context, transport.Call) ([]byte, error) { return nil, transport.ErrClosed }
func (c ended) Close() error                                         { return nil }

func (c ended) Done() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

// unanswered never connects: Peers may draw addresses of a test at any time.
type unanswered struct{}

func (unanswered) Dial(ctx context.Context, _ transport.Address) (transport.Conn, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// visited makes p visit a node that an operator's peer has advertised.
func visited(t *testing.T, p *Peers, a transport.Address) *visit {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	b, now := p.mu.book, time.Now()
	require.True(t, b.learn(now, operators(0), []transport.Address{a}, nobody))
	next, ok, _ := b.next(now, nobody)
	require.True(t, ok)
	require.Equal(t, a, next)
	return b.known[a.ID].visit
}

// A node that makes room gets no other connection meanwhile, since it would keep its slot for good.
func TestLeavingNodesGetNoConnection(t *testing.T) {
	p := New(Options{Logger: log.NewNopLogger(), Dialer: unanswered{}})
	defer p.Close()
	ups := 0
	p.Watch(Watcher{Up: func(transport.Conn) { ups++ }})
	a := transport.Address{ID: idOf(1), HostPort: "a:1"}
	v := visited(t, p, a)
	for _, leaves := range []bool{true, false} {
		p.mu.Lock()
		v.leaves = leaves
		p.mu.Unlock()
		require.Nil(t, p.attend(ended{at: a}, false))
		require.Equal(t, !leaves, ups == 1)
	}
}

// An invalid answer from an address of the operator is charged to no advertiser.
func TestOwnPeersAreChargedToNobody(t *testing.T) {
	p := New(Options{Logger: log.NewNopLogger(), Dialer: unanswered{}})
	defer p.Close()
	for i, own := range []bool{true, false} {
		a := transport.Address{ID: idOf(i), HostPort: "a:1"}
		visited(t, p, a)
		p.mu.Lock()
		p.mu.up[a.ID] = &peer{Conn: ended{at: a}, own: own}
		p.mu.Unlock()
		p.Ban(a.ID, statesync.BanChunk, "an invalid chunk")
		p.mu.Lock()
		spent := p.mu.book.advertisers[string(operators(0).id)].spent.amount
		p.mu.Unlock()
		require.Equal(t, !own, spent > 0)
	}
}
