package guest

import (
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"testing"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/tx"
)

const (
	interval  = 5 // blocks between snapshots
	stateKeys = 200
	stateSize = 16 << 10 // bytes of a value
)

// A node joins over RDMA channels, from a validator and from a peer that damages every chunk. The
// peer is banned for its responses over TLS, where it is asked again; the state comes over RDMA.
func TestJoinWithALiar(t *testing.T) {
	p, ctx := processes(t)
	before := resources(t)
	homes := makeHomes(t, ctx, 1, "validator", "joiner", "liar")
	validator, joiner, liar := homes[0], homes[1], homes[2]
	// The validator is slow, so that the join lasts until the other one is banned.
	start(t, p, homes, 0, []string{"STARLINGD_TRANSPORT_SEND_RATE=500000"}, starlingd, "start")
	start(t, p, homes, 2, nil, byzantine, "--lie", "corrupt")
	await(t, ctx, validator, 1)
	height := fill(t, validator)
	snapshot := (height + interval - 1) / interval * interval
	for _, home := range []*runner.Home{validator, liar} {
		await(t, ctx, home, snapshot+2)
	}
	t.Run("rdma check", func(t *testing.T) { checkPath(t, ctx, joiner, validator) })

	header, err := validator.Header(ctx, snapshot)
	require.NoError(t, err)
	require.NoError(t, joiner.Configure(func(c *cfg.Config) {
		c.P2P.PersistentPeers = runner.Peers(validator, liar)
		c.StateSync.Enable, c.StateSync.TrustHeight, c.StateSync.TrustHash = true, header.Height, fmt.Sprintf("%X", header.Hash)
	}))
	start(t, p, homes, 1, nil, starlingd, "start")
	require.NoError(t, runner.Poll(ctx, "the joiner to have the state", func() bool {
		return len(runner.Logged(joiner.Log(), runner.LogRestored)) > 0
	}))
	said := runner.Logged(joiner.Log(), runner.LogRestored)[0]
	t.Logf("%v", said.Fields)
	require.NoError(t, runner.Poll(ctx, "the joiner to ban the Byzantine peer", func() bool {
		return len(runner.Logged(joiner.Log(), runner.LogBanned)) > 0
	}))
	for _, line := range runner.Logged(joiner.Log(), runner.LogBanned) {
		t.Logf("banned: %v", line.Fields)
		require.Equal(t, liar.ID(), line.Fields["peer"])
	}

	await(t, ctx, joiner, snapshot+3)
	mine, err := joiner.AppInfo(ctx)
	require.NoError(t, err)
	await(t, ctx, validator, mine.Height+1)
	next, err := validator.Header(ctx, mine.Height+1)
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("%X", next.AppHash), fmt.Sprintf("%X", mine.Hash), "height %d", mine.Height)

	got := counted(t, ctx, joiner, "transport_rdma_bytes_total", "peer", validator.ID(), "direction", "received")
	t.Logf("over RDMA: %.0f bytes from the validator, %.0f calls to the Byzantine peer", got, counted(t, ctx, joiner, "transport_rdma_calls_total", "peer", liar.ID()))
	// Chunks that were requested before the channel was up came over TLS.
	require.Greater(t, got, float64(said.Int("bytes"))/8, "chunks came over RDMA")
	require.NoError(t, p.Stop(20*time.Second))
	require.Equal(t, before, resources(t), "nothing leaks")
}

// checkPath runs `rdma check` to a peer with a home in node2, with the usual MTU and with a smaller
// one at its own end.
func checkPath(t *testing.T, ctx context.Context, home, of *runner.Home) {
	peer, err := of.Transport()
	require.NoError(t, err)
	for mtu, want := range map[string]string{"9000": "packets of 4096 bytes, the MTU of both ports", "1500": "packets of 1024 bytes: limited by the local MTU, the peer supports 4096"} {
		first(t, "ip link set v1 mtu "+mtu)
		out, err := exec.CommandContext(ctx, "ip", "netns", "exec", "node2", starlingd, "rdma", "check", peer, "--home", home.Dir).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "established from 10.7.0.2")
		require.Contains(t, string(out), want)
	}
	first(t, "ip link set v1 mtu 9000")
}

// fill writes the state, and returns the height of its last block.
func fill(t *testing.T, to *runner.Home) (height int64) {
	t.Helper()
	c, err := client.Dial(t.Context(), []string{to.RPC()}, client.WithChainID(chain), client.WithKey(ed25519.GenPrivKeyFromSecret([]byte(chain))))
	require.NoError(t, err)
	random := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // the same state each time
	for from := 0; from < stateKeys; from += 20 {
		var operations []tx.Operation
		for i := range 20 {
			value := make([]byte, stateSize/2)
			for j := range value {
				value[j] = byte(random.Uint32())
			}
			operations = append(operations, tx.NewPut(fmt.Appendf(nil, "%s%06d", prefix, from+i), hex.AppendEncode(nil, value)))
		}
		result, err := c.Submit(t.Context(), operations...)
		require.NoError(t, err)
		height = result.Height
	}
	return height
}
