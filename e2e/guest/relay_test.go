package guest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/tx"
)

// validators are three validators, all of which every block needs. They relay over RDMA channels,
// and over p2p if there is no channel.
type validators struct {
	ctx     context.Context
	homes   []*runner.Home
	clients []*client.Client
	written int
}

// Three validators relay blocks of many parts over RDMA while their channels break and come back.
// Every block is decided in the first round, and all have the same blocks.
func TestRelayWhilePathsBreak(t *testing.T) {
	p, ctx := processes(t)
	before := resources(t)
	v := &validators{ctx: ctx, homes: makeHomes(t, ctx, 3, "validator-1", "validator-2", "validator-3")}
	for i := range v.homes {
		start(t, p, v.homes, i, []string{"STARLINGD_TRANSPORT_RELAY=rdma"}, starlingd, "start")
	}
	for _, home := range v.homes {
		await(t, ctx, home, 1)
		c, err := client.Dial(ctx, []string{home.RPC()}, client.WithChainID(chain), client.WithKey(ed25519.GenPrivKeyFromSecret([]byte(home.Name))))
		require.NoError(t, err)
		v.clients = append(v.clients, c)
	}
	v.connected(t)
	v.relays(t, "while all is well")

	// The second validator's channels, one to each of the others, use the cable, and break.
	broken := v.fallbacks(t)
	first(t, "rdma-wire cut")
	require.NoError(t, runner.Poll(ctx, "the paths to break", func() bool {
		v.write(t, 1)
		return v.fallbacks(t) > broken
	}))
	v.write(t, 3)
	first(t, "rdma-wire repair")
	v.write(t, 3)
	v.connected(t) // a lost channel is proposed again after a minute
	v.relays(t, "after the cable was repaired")

	broken = v.fallbacks(t)
	first(t, "rdma-wire down")
	require.NoError(t, runner.Poll(ctx, "the paths to break again", func() bool {
		v.write(t, 1)
		return v.fallbacks(t) > broken
	}))
	first(t, "rdma-wire up; "+thirdRoute)
	v.write(t, 3)
	v.check(t)
	require.NoError(t, p.Stop(20*time.Second))
	require.Equal(t, before, resources(t), "nothing leaks")
}

// valueSize makes blocks of four parts with one transaction. The VM's disk is in its memory.
const valueSize = 190 << 10

// write sends transactions to the validators in turn.
func (v *validators) write(t *testing.T, transactions int) {
	t.Helper()
	value := []byte(strings.Repeat("v", valueSize))
	for range transactions {
		_, err := v.clients[v.written%len(v.clients)].Submit(v.ctx, tx.NewPut(fmt.Appendf(nil, "%s%d", prefix, v.written), value))
		require.NoError(t, err)
		v.written++
	}
}

// connected waits until every validator has its channels: two that it has dialled, two that it
// serves.
func (v *validators) connected(t *testing.T) {
	t.Helper()
	for _, home := range v.homes {
		require.NoError(t, runner.Poll(v.ctx, fmt.Sprintf("%s to have RDMA channels", home.Name), func() bool {
			return counted(t, v.ctx, home, "transport_rdma_paths_up") == 4
		}))
	}
}

// relays writes until every validator has accepted block parts that came over RDMA.
func (v *validators) relays(t *testing.T, when string) {
	t.Helper()
	for _, home := range v.homes {
		parts := func() float64 {
			return counted(t, v.ctx, home, "relay_received_total", "kind", "part", "outcome", "taken")
		}
		bytes := func() float64 { return counted(t, v.ctx, home, "transport_rdma_bytes_total", "direction", "received") }
		hadParts, hadBytes := parts(), bytes()
		require.NoError(t, runner.Poll(v.ctx, fmt.Sprintf("%s to accept parts over RDMA %s", home.Name, when), func() bool {
			v.write(t, 1)
			return parts() >= hadParts+4 && bytes() >= hadBytes+4*64<<10
		}))
		t.Logf("%s, %s: %.0f parts were accepted, %.0f bytes came over RDMA", home.Name, when, parts(), bytes())
	}
}

// fallbacks returns the number of channels that have ended, or were not made.
func (v *validators) fallbacks(t *testing.T) (n float64) {
	t.Helper()
	for _, home := range v.homes {
		n += counted(t, v.ctx, home, "transport_rdma_fallbacks_total")
	}
	return n
}

// check compares the chains.
func (v *validators) check(t *testing.T) {
	t.Helper()
	at, err := v.homes[0].AppInfo(v.ctx)
	require.NoError(t, err)
	for _, home := range v.homes {
		await(t, v.ctx, home, at.Height)
	}
	for height := int64(1); height <= at.Height; height++ {
		one, err := v.homes[0].Header(v.ctx, height)
		require.NoError(t, err)
		require.Zero(t, one.Round, "height %d", height)
		for _, home := range v.homes[1:] {
			other, err := home.Header(v.ctx, height)
			require.NoError(t, err)
			require.Equal(t, fmt.Sprintf("%X %X", one.Hash, one.AppHash), fmt.Sprintf("%X %X", other.Hash, other.AppHash), "height %d", height)
		}
	}
	t.Logf("%d blocks, %d transactions", at.Height, v.written)
}
