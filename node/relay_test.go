package node

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/node/relay"
	"github.com/starling-kv/starling/transport"
)

// relayNetwork is a network of validators in this process that relay.
type relayNetwork struct {
	nodes  []*Node
	homes  []string
	loaded int // transactions of load
}

// startRelaying starts validators, with transports changed by wraps. A round ends only by a block
// or after minutes, so that only a lost part causes another round.
func startRelaying(t *testing.T, validators int, wrap func(node int, h transport.Handler) transport.Handler) *relayNetwork {
	t.Helper()
	return startValidators(t, validators, func(c *cfg.Config, a *config.App) {
		a.Transport.Relay = config.RelayAll
		c.Consensus.TimeoutPropose = 10 * time.Minute
	}, wrap)
}

func startValidators(
	t *testing.T, validators int, change func(*cfg.Config, *config.App), wrap func(node int, h transport.Handler) transport.Handler,
) *relayNetwork {
	t.Helper()
	n := new(relayNetwork)
	var peers []string
	for range validators {
		dir, result := nodetest.Home(t, func(o *home.InitOptions) {
			edit := o.Edit
			o.Edit = func(c *cfg.Config, a *config.App) {
				edit(c, a)
				change(c, a)
				c.P2P.PersistentPeers = strings.Join(peers, ",")
			}
		})
		n.homes = append(n.homes, dir)
		peers = append(peers, fmt.Sprintf("%s@%s", result.NodeID, nodetest.Load(t, dir).CometBFT.P2P.ListenAddress[len("tcp://"):]))
	}
	n.shareGenesis(t)
	for i, dir := range n.homes {
		n.nodes = append(n.nodes, start(t, dir, log.NewNopLogger(), WithTransport(func(h transport.Handler) transport.Handler { return wrap(i, h) })))
	}
	nodetest.Until(t, "all take part", func() bool {
		for _, node := range n.nodes {
			if node.Comet().ConsensusReactor().WaitSync() || node.Application().Height() < 1 ||
				node.Comet().Switch().Peers().Size() < validators-1 { // CometBFT dials within 3 s
				return false
			}
		}
		return true
	})
	return n
}

// shareGenesis makes all nodes validators of the first one's chain.
func (n *relayNetwork) shareGenesis(t *testing.T) {
	t.Helper()
	var doc map[string]any
	var validators []any
	for i, dir := range n.homes {
		raw, err := os.ReadFile(filepath.Join(dir, "config", "genesis.json"))
		require.NoError(t, err)
		var one map[string]any
		require.NoError(t, json.Unmarshal(raw, &one))
		validators = append(validators, one["validators"].([]any)...)
		if i == 0 {
			doc = one
		}
	}
	doc["validators"] = validators
	raw, err := json.Marshal(doc)
	require.NoError(t, err)
	for _, dir := range n.homes {
		nodetest.WriteFile(t, filepath.Join(dir, "config", "genesis.json"), string(raw))
	}
}

// load sends transactions of a quarter of a MiB, so that blocks have many parts, until all nodes
// have several more non-empty blocks.
func (n *relayNetwork) load(t *testing.T, blocks int64) {
	t.Helper()
	client := nodetest.RPC(t, n.homes[0])
	value := strings.Repeat("v", 256<<10)
	for range blocks {
		n.loaded++ // the same text is not accepted twice
		nodetest.Put(t, client, fmt.Sprintf("key-%d", n.loaded), value)
	}
	height := n.nodes[0].Application().Height()
	nodetest.Until(t, "all nodes have the blocks", func() bool {
		for _, node := range n.nodes {
			if node.Application().Height() < height {
				return false
			}
		}
		return true
	})
}

// Validators make blocks although CometBFT's gossip hardly ever looks: they push their votes and
// blocks. Each block needs the votes of all three.
func TestPushWithoutGossip(t *testing.T) {
	n := startValidators(t, 3, func(c *cfg.Config, _ *config.App) {
		c.Consensus.TimeoutPropose = 10 * time.Minute
		c.Consensus.PeerGossipSleepDuration = 20 * time.Second
	}, func(_ int, h transport.Handler) transport.Handler { return h })
	nodetest.Until(t, "blocks", func() bool { return n.nodes[0].Application().Height() >= 50 })
}

// check compares the chains: the same hashes, no second round, no disconnected peer.
func (n *relayNetwork) check(t *testing.T) {
	t.Helper()
	height := n.nodes[0].Application().Height()
	for _, other := range n.nodes[1:] {
		height = min(height, other.Application().Height())
	}
	for h := int64(2); h <= height; h++ {
		first := n.nodes[0].Comet().BlockStore().LoadBlock(h)
		require.Zero(t, first.LastCommit.Round, "height %d", h-1)
		for _, other := range n.nodes[1:] {
			require.Equal(t, first.Hash(), other.Comet().BlockStore().LoadBlock(h).Hash(), "height %d", h)
		}
	}
	for _, node := range n.nodes {
		nodetest.SameHashes(t, node.Application(), node.Comet)
		require.Equal(t, len(n.nodes)-1, node.Comet().Switch().Peers().Size())
	}
}

// relayed calls f for each message relayed to a node.
func relayed(h transport.Handler, f func(ctx context.Context, r transport.Request) ([]byte, error)) transport.Handler {
	return transport.HandlerFunc(func(ctx context.Context, r transport.Request) ([]byte, error) {
		if r.Method != relay.Method {
			return h.Serve(ctx, r)
		}
		return f(ctx, r)
	})
}

func TestValidatorsRelayBlocks(t *testing.T) {
	var taken atomic.Int64
	n := startRelaying(t, 3, func(_ int, h transport.Handler) transport.Handler {
		return relayed(h, func(ctx context.Context, r transport.Request) ([]byte, error) {
			answer, err := h.Serve(ctx, r)
			if err == nil {
				taken.Add(1)
			}
			return answer, err
		})
	})
	n.load(t, 5)
	// A busy machine delays messages, and a link pauses after late ones.
	for rounds := 0; rounds < 50 && taken.Load() <= 20; rounds++ {
		n.load(t, 1)
	}
	require.Greater(t, taken.Load(), int64(20), "parts take the relay")
	n.check(t)
}

// Relayed messages are refused, dropped, or accepted but not answered in time, so that they arrive
// twice: the chain is made as without a relay, and no peer is punished for duplicates.
func TestValidatorsWhoseRelayBreaks(t *testing.T) {
	if testing.Short() {
		t.Skip("a network of four")
	}
	rng := seeds.Rand(t)
	var mu sync.Mutex
	var twice atomic.Int64
	n := startRelaying(t, 4, func(_ int, h transport.Handler) transport.Handler {
		return relayed(h, func(ctx context.Context, r transport.Request) ([]byte, error) {
			mu.Lock()
			fate := rng.IntN(20)
			mu.Unlock()
			switch fate {
			case 0:
				return nil, transport.ErrRefused
			case 1:
				return nil, transport.ErrGone
			case 2:
				return nil, transport.ErrBusy
			case 3: // dropped
				<-ctx.Done()
				return nil, ctx.Err()
			case 4, 5, 6: // accepted, but the response is lost
				if _, err := h.Serve(ctx, r); err == nil {
					twice.Add(1)
				}
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return h.Serve(ctx, r)
		})
	})
	n.load(t, 30)
	n.check(t)
	require.Positive(t, twice.Load())
}
