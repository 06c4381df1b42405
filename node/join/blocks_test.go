package join

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/peers"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/transport"
)

// claimants are peers by host:port. An absent one is down. A silent one never answers.
type claimants map[string]*claimant

type claimant struct {
	at     transport.Address
	silent bool
	done   chan struct{}
}

func (c claimants) Dial(_ context.Context, a transport.Address) (transport.Conn, error) {
	p := c[a.HostPort]
	if p == nil {
		return nil, errors.New("connection refused")
	}
	p.done = make(chan struct{})
	return p, nil
}

func (c *claimant) Remote() transport.Address { return c.at }
func (c *claimant) ChainID() string           { return "chain" }
func (c *claimant) Done() <-chan struct{}     { return c.done }
func (c *claimant) Err() error                { return nil }

func (c *claimant) Close() error {
	select {
	case <-c.done:
	default:
		close(c.done)
	}
	return nil
}

func (c *claimant) Call(ctx context.Context, call transport.Call) ([]byte, error) {
	if c.silent {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-c.done:
			return nil, transport.ErrClosed
		}
	}
	if call.Method == protocol.MethodStatus {
		return protocol.Status{Base: 1, Height: 10}.Encode(), nil
	}
	return nil, transport.ErrRefused
}

// A join waits for the claims of peers that may still answer: not for banned ones, and only young
// for those that are down. A silent peer delays it for a limited time.
func TestClaimsSettle(t *testing.T) {
	const limit = 3 * time.Second
	for _, c := range []struct {
		name              string
		change            func(claimants)
		ban               bool
		blocks, all       bool // settled at once
		peersThatAnswered int
	}{
		{"all answer", func(claimants) {}, false, true, true, 3},
		{"one is banned", func(claimants) {}, true, true, true, 2},
		{"one is down", func(c claimants) { delete(c, "c:1") }, false, true, false, 2},
		{"one is silent", func(c claimants) { c["c:1"].silent = true }, false, false, false, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dialer := claimants{}
				var addresses []transport.Address
				for _, name := range []string{"a", "b", "c"} {
					a := transport.Address{ID: transport.ID(name), HostPort: name + ":1"}
					addresses = append(addresses, a)
					dialer[a.HostPort] = &claimant{at: a}
				}
				addresses = append(addresses, transport.Address{ID: "c", HostPort: "c:2"}) // down
				c.change(dialer)
				p := peers.New(peers.Options{Logger: log.NewNopLogger(), Dialer: dialer, Addresses: addresses})
				defer p.Close()
				synctest.Wait()
				if c.ban {
					p.Ban("c", statesync.BanChunk, "a damaged chunk")
					synctest.Wait()
				}
				until := time.Now().Add(limit)
				blocks, stop := newClaims(p, false, until)
				defer stop()
				all, stop := newClaims(p, true, until)
				defer stop()
				list, _, settled := blocks.list()
				require.Len(t, list, c.peersThatAnswered)
				require.Equal(t, c.blocks, settled)
				_, _, settled = all.list()
				require.Equal(t, c.all, settled)
				<-time.After(limit + 1)
				_, _, settled = all.list()
				require.True(t, settled)
			})
		})
	}
}
