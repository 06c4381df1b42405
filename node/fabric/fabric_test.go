package fabric

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/rdma"
	"github.com/starling-kv/starling/transport/rdma/rdmatest"
	"github.com/starling-kv/starling/transport/tcp"
	"github.com/starling-kv/starling/transport/transporttest"
)

const chain = "chain"

func settings(change func(*config.Transport)) *config.Config {
	app := config.DefaultApp()
	app.Transport.ListenAddress = "127.0.0.1:0"
	change(&app.Transport)
	return &config.Config{CometBFT: config.DefaultCometBFT(), App: app}
}

// Without RDMA, a node runs over TLS and logs the reason once; a node that requires RDMA does not
// start.
func TestOpenWithout(t *testing.T) {
	if rdma.Supported {
		t.Skip("this build has RDMA")
	}
	var logged bytes.Buffer
	logger := log.NewTMLogger(log.NewSyncWriter(&logged))
	p, err := Open(settings(func(*config.Transport) {}), logger, nil)
	require.NoError(t, err)
	require.Nil(t, p)
	require.Nil(t, p.Sides())
	require.Nil(t, p.Status(""))
	require.NoError(t, p.Close())
	require.Empty(t, logged.String(), "they are off")
	p, err = Open(settings(func(c *config.Transport) { c.RDMA = config.RDMAAuto }), logger, nil)
	require.NoError(t, err)
	require.Nil(t, p.Sides())
	page := p.Status("")
	require.Equal(t, "program: this build has no RDMA", page.Missing)
	require.Contains(t, page.Fix, "run starlingd-rdma")
	require.NotNil(t, page.Peers)
	require.NoError(t, p.Close())
	require.Contains(t, logged.String(), "this build has no RDMA: run starlingd-rdma")
	_, err = Open(settings(func(c *config.Transport) { c.RDMA = config.RDMARequired }), logger, nil)
	require.ErrorIs(t, err, config.ErrInvalid)
	require.ErrorContains(t, err, `transport.rdma is "required"`)
}

// serve serves responses of 100 KB, over RDMA or not.
func serve(t *testing.T, sides tcp.Sides) transport.Address {
	t.Helper()
	s, err := tcp.Listen("127.0.0.1:0", tcp.Options{Key: transporttest.Key(1), ChainID: chain, Sides: sides,
		Handler: transport.HandlerFunc(func(context.Context, transport.Request) ([]byte, error) { return make([]byte, 100_000), nil })})
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return transport.Address{ID: transporttest.ID(1), HostPort: s.Addr().String()}
}

// Named peers and trusted networks get channels; a channel is counted by peer, and ends with its
// reason.
func TestPathsAreCounted(t *testing.T) {
	var network rdmatest.Network
	t.Cleanup(func() { require.Zero(t, network.Queues()) })
	named := settings(func(c *config.Transport) { c.RDMA, c.RDMAPeers = config.RDMAAuto, string(transporttest.ID(1)) })
	trusted := settings(func(c *config.Transport) { c.RDMA, c.RDMAFabric = config.RDMAAuto, "127.0.0.0/8" })
	registry := prometheus.NewRegistry()
	logged := new(nodetest.LogBuffer)
	client, err := open(named.App.Transport, log.NewTMLogger(log.NewSyncWriter(logged)), registry, network.New)
	require.NoError(t, err)
	others := prometheus.NewRegistry()
	server, err := open(trusted.App.Transport, log.NewNopLogger(), others, network.New)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, errors.Join(client.Close(), server.Close())) })

	conn, err := tcp.NewDialer(tcp.Options{Key: transporttest.Key(2), ChainID: chain, Sides: client.Sides()}).Dial(t.Context(), serve(t, server.Sides()))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	const prefix = "starling_transport_rdma_"
	peer := string(transporttest.ID(1))
	for value(t, registry, prefix+"calls_total", peer) == 0 { // until the channel is established
		_, err := conn.Call(t.Context(), transport.Call{Method: 4, Into: make([]byte, 100_000)})
		require.NoError(t, err)
	}
	// The client may have the response earlier.
	nodetest.Until(t, "the server has counted the response", func() bool {
		peers := server.Status("").Peers
		return len(peers) > 0 && peers[0].SentBytes >= 100_000
	})
	require.GreaterOrEqual(t, value(t, registry, prefix+"bytes_total", "received", peer), 100_000.0)
	require.GreaterOrEqual(t, value(t, others, prefix+"bytes_total", "sent", otherPeer), 100_000.0)
	require.InEpsilon(t, 1.0, value(t, registry, prefix+"paths_up"), 0)
	require.InEpsilon(t, 1.0, value(t, registry, prefix+"queue_pairs"), 0)
	require.InEpsilon(t, 32<<20, value(t, registry, prefix+"memory_bytes"), 0.1)
	page := client.Status("")
	require.Equal(t, 1, page.PathsUp)
	require.Len(t, page.Peers, 1)
	require.Equal(t, peer, page.Peers[0].ID)
	require.Equal(t, 1, page.Peers[0].PathsUp)
	require.GreaterOrEqual(t, page.Peers[0].ReceivedBytes, uint64(100_000))
	require.Empty(t, page.Peers[0].Fallback)
	require.True(t, page.Peers[0].Connected)
	require.True(t, server.Status("").Peers[0].Connected)
	require.Equal(t, string(transporttest.ID(2)), server.Status("").Peers[0].ID)
	require.Empty(t, client.Status("x,"+peer).Peers, "a private one")
	require.NoError(t, server.Close())
	// The server's closing arrives with a response or earlier.
	for value(t, registry, prefix+"fallbacks_total", peer, "peer") == 0 {
		_, err := conn.Call(t.Context(), transport.Call{Method: 4, Into: make([]byte, 100_000)})
		require.NoError(t, err)
	}
	page = client.Status("")
	require.Zero(t, page.Peers[0].PathsUp)
	require.Equal(t, rdma.Reason(rdma.ErrPeerEnded), page.Peers[0].Fallback)
	require.True(t, page.Peers[0].Connected, "over TLS")
	require.False(t, page.Peers[0].FallbackTime.IsZero())
	require.NoError(t, conn.Close())
	require.Eventually(t, func() bool {
		return !client.Status("").Peers[0].Connected && !server.Status("").Peers[0].Connected
	}, time.Minute, time.Millisecond)
	require.Empty(t, server.mu.served)
	require.NoError(t, client.Close())
	require.True(t, logged.Has("No RDMA channel"))
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Empty(t, families, "a stopped node has no metrics")
}

// The reason for a missing channel is shown by its class: the text may contain addresses of this
// host.
func TestReasonsNameNoAddresses(t *testing.T) {
	var network rdmatest.Network
	p, err := open(config.Transport{}, log.NewNopLogger(), nil, network.New)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	p.hooks().Down("peer", errors.New("connect a queue pair of 10.7.0.1: no route"))
	require.Equal(t, "device", p.Status("").Peers[0].Fallback)
}

// If there are too many peers, disconnected peers are forgotten first, oldest first; a peer with a
// channel keeps its counts.
func TestOldPeersAreForgotten(t *testing.T) {
	var network rdmatest.Network
	p, err := open(config.Transport{}, log.NewNopLogger(), nil, network.New)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	h := p.hooks()
	p.connected("connected", 1)
	h.Sent("connected", 7)
	h.Sent("oldest", 1)
	h.Sent("old", 1)
	h.Sent("oldest", 1) // so now it is not
	for i := range maxPeers - 2 {
		h.Sent(transport.ID(fmt.Sprint("peer", i)), 1)
	}
	require.Len(t, p.mu.peers, maxPeers)
	require.NotContains(t, p.mu.peers, transport.ID("old"))
	require.Contains(t, p.mu.peers, transport.ID("oldest"))
	require.Equal(t, uint64(7), p.mu.peers["connected"].sent)
	h.Sent("another", 1)
	require.NotContains(t, p.mu.peers, transport.ID("oldest"))
	for id := range p.mu.peers { // all are connected: the oldest one is removed
		p.connected(id, 1)
	}
	h.Sent("and another", 1)
	require.Len(t, p.mu.peers, maxPeers)
	require.NotContains(t, p.mu.peers, transport.ID("connected"))
}

// value returns the value of a counter or a gauge. Labels are values in the order of their names.
func value(t *testing.T, r *prometheus.Registry, name string, labels ...string) float64 {
	t.Helper()
	families, err := r.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var have []string
			for _, l := range m.GetLabel() {
				have = append(have, l.GetValue())
			}
			if f.GetName() == name && slices.Equal(labels, have) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("no metric %s %v", name, labels)
	return 0
}

// A peer that is neither named nor in a trusted network gets no channel.
func TestStrangersHaveNoPaths(t *testing.T) {
	c := settings(func(c *config.Transport) {
		c.RDMA, c.RDMAPeers, c.RDMAFabric = config.RDMAAuto, string(transporttest.ID(1)), "10.7.0.0/24,fd00::/64"
	}).App.Transport
	for _, one := range []struct {
		peer int
		addr string
		want bool
	}{
		{1, "192.0.2.1", true}, {2, "192.0.2.1", false}, {2, "10.7.0.9", true}, {2, "::ffff:10.7.0.9", true}, {2, "10.7.1.9", false},
		{2, "fd00::5", true}, {2, "fd00:0:0:1::5", false},
	} {
		require.Equal(t, one.want, c.AllowsRDMA(transporttest.ID(one.peer), netip.MustParseAddr(one.addr)), "%+v", one)
	}
	require.Equal(t, 1+c.MaxPeers, c.RDMAPeerCount(), "a network of 2^64 addresses")
	c.RDMAFabric = "10.7.0.8/30,fd00::7/128"
	require.Equal(t, 1+4+1, c.RDMAPeerCount())
	c.RDMAFabric = ""
	require.Equal(t, 1, c.RDMAPeerCount())
}

// A probe reports an established channel, or a hint.
func TestProbe(t *testing.T) {
	var network rdmatest.Network
	o := tcp.Options{Key: transporttest.Key(2), ChainID: chain}
	server := network.New(rdma.Options{Allowed: func(id transport.ID, _ netip.Addr) bool { return id == transporttest.ID(2) }})
	t.Cleanup(func() {
		require.NoError(t, server.Close())
		require.Zero(t, network.Queues())
	})
	at := serve(t, server)
	w, err := probe(t.Context(), o, at, network.New)
	require.NoError(t, err)
	require.Contains(t, w.From, "127.0.0.1")
	require.Equal(t, [2]int{4096, 4096}, [2]int{w.MTU, w.PeerMTU})
	o.Key = transporttest.Key(3)
	_, err = probe(t.Context(), o, at, network.New)
	require.ErrorIs(t, err, ErrNoPath)
	require.ErrorContains(t, err, "name this node's ID in transport.rdma_peers")
	_, err = probe(t.Context(), o, serve(t, nil), network.New)
	require.ErrorIs(t, err, ErrNoPath, "an older peer, or one without")
}

// The metrics match docs/reference/metrics.md.
func TestMetricsAreDocumented(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "metrics.md"))
	require.NoError(t, err)
	m := newMetrics(nil)
	descs := make(chan *prometheus.Desc, 100)
	m.Describe(descs)
	close(descs)
	for d := range descs {
		_, rest, _ := strings.Cut(d.String(), `fqName: "`)
		name, _, _ := strings.Cut(rest, `"`)
		require.Contains(t, string(raw), "`"+name+"`")
	}
	for _, reason := range rdma.Reasons() {
		require.Contains(t, string(raw), "`"+reason+"`")
	}
}
