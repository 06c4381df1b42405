package node

import (
	"cmp"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/statesync/scheduler"
	"github.com/starling-kv/starling/statesync/view"
	"github.com/starling-kv/starling/transport/transporttest"
)

var updateMetrics = flag.Bool("update-metrics", false, "rewrite the table in docs/reference/metrics.md")

// metric is a row of the table.
type metric struct{ name, kind, labels, help string }

// scrape reads Starling's metrics from a registry or a server.
func scrape(t *testing.T, url string) (list []metric) {
	t.Helper()
	resp, err := http.Get(url) //nolint:noctx // a test
	require.NoError(t, err)
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	require.NoError(t, err)
	for name, f := range families {
		if strings.HasPrefix(name, "starling_") {
			m := metric{name: name, kind: strings.ToLower(f.GetType().String()), help: f.GetHelp()}
			var labels []string
			for _, l := range f.GetMetric()[0].GetLabel() {
				labels = append(labels, l.GetName())
			}
			m.labels = strings.Join(labels, ", ")
			list = append(list, m)
		}
	}
	return list
}

// views is a join in which each peer has sent one chunk.
type views int

func (v views) Progress() (view.Progress, bool) {
	return view.Progress{Phase: view.PhaseFetching}, true
}

func (v views) Peers() (peers []view.Peer) {
	for i := range int(v) {
		p := view.Peer{PeerStats: scheduler.PeerStats{ID: scheduler.PeerID(transporttest.ID(i)), Verified: 1}, Address: "host:1"}
		if i%4 == 3 {
			p.Address = "" // gone
		}
		peers = append(peers, p)
	}
	return peers
}

// The node's metrics match docs/reference/metrics.md: names, types, labels and help.
// -update-metrics rewrites it.
func TestMetricsAreDocumented(t *testing.T) {
	registerer, gatherer := prometheus.DefaultRegisterer, prometheus.DefaultGatherer
	t.Cleanup(func() { prometheus.DefaultRegisterer, prometheus.DefaultGatherer = registerer, gatherer })
	registry := prometheus.NewRegistry()
	prometheus.DefaultRegisterer, prometheus.DefaultGatherer = registry, registry

	port := nodetest.FreePorts(t, 1)[0]
	home, _ := nodetest.Home(t, func(o *home.InitOptions) {
		edit := o.Edit
		o.Edit = func(c *cfg.Config, a *config.App) {
			edit(c, a)
			c.Instrumentation.Prometheus, c.Instrumentation.PrometheusListenAddr = true, fmt.Sprintf("127.0.0.1:%d", port)
			a.Transport.Relay = config.RelayAll
			a.GRPC.ListenAddress = "127.0.0.1:0"
		}
	})
	n := start(t, home, log.NewNopLogger())
	nodetest.Put(t, nodetest.RPC(t, home), "a", "1")
	rpc, err := client.NewRPC("grpc://" + n.grpc.Addr())
	require.NoError(t, err)
	_, err = rpc.Status(t.Context())
	require.NoError(t, err)
	url := fmt.Sprintf("http://127.0.0.1:%d/metrics", port)
	nodetest.Until(t, "the metrics server is up", func() bool {
		resp, err := http.Get(url) //nolint:noctx // a test
		if err != nil {
			return false
		}
		return resp.Body.Close() == nil
	})
	list := scrape(t, url)

	// Those of peers are there during a join only.
	peers := prometheus.NewRegistry()
	require.NoError(t, peers.Register(newJoinMetrics(views(1))))
	families, err := peers.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if labels := f.GetMetric()[0].GetLabel(); len(labels) > 0 {
			list = append(list, metric{f.GetName(), strings.ToLower(f.GetType().String()), labels[0].GetName(), f.GetHelp()})
		}
	}
	slices.SortFunc(list, func(a, b metric) int { return cmp.Compare(a.name, b.name) })
	var table strings.Builder
	table.WriteString("| name | type | labels | |\n| --- | --- | --- | --- |\n")
	for _, m := range list {
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", m.name, m.kind, m.labels, m.help)
		require.Equal(t, m.kind == "counter", strings.HasSuffix(m.name, "_total"), "%s: counters, and only they, end in _total", m.name)
		require.True(t, strings.HasSuffix(m.help, "."), "%s: help is a sentence: %q", m.name, m.help)
		require.NotContains(t, m.help, "|")
	}
	path := filepath.Join("..", "docs", "reference", "metrics.md")
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	const from, to = "<!-- metrics: written by go test ./node -run TestMetricsAreDocumented -update-metrics -->\n", "<!-- end -->\n"
	before, rest, found := strings.Cut(string(raw), from)
	require.True(t, found)
	old, after, found := strings.Cut(rest, to)
	require.True(t, found)
	if *updateMetrics {
		require.NoError(t, os.WriteFile(path, []byte(before+from+table.String()+to+after), 0o644))
		return
	}
	require.Equal(t, table.String(), old, "docs/reference/metrics.md is not what a node counts: go test ./node -run TestMetricsAreDocumented -update-metrics")
	require.NoError(t, n.Stop())
	_, err = registry.Gather() // a node that has stopped answers, too
	require.NoError(t, err)
}

// However many peers there are, only so many have metrics, and one that goes has none any more.
func TestMetricsOfPeersAreBounded(t *testing.T) {
	for peers, want := range map[views]int{0: 0, 3: 3, 4: 3, 1000: maxPeerLabels} {
		registry := prometheus.NewRegistry()
		require.NoError(t, registry.Register(newJoinMetrics(peers)))
		families, err := registry.Gather()
		require.NoError(t, err)
		seen := 0
		for _, f := range families {
			if f.GetName() == "starling_statesync_peer_chunks_verified_total" {
				seen = len(f.GetMetric())
			}
		}
		require.Equal(t, want, seen, "of %d peers", peers)
	}
}

// A node that starts after another one has stopped in the same process exports its own metrics.
func TestMetricsOfASecondNode(t *testing.T) {
	registerer, gatherer := prometheus.DefaultRegisterer, prometheus.DefaultGatherer
	t.Cleanup(func() { prometheus.DefaultRegisterer, prometheus.DefaultGatherer = registerer, gatherer })
	registry := prometheus.NewRegistry()
	prometheus.DefaultRegisterer, prometheus.DefaultGatherer = registry, registry

	home, _ := nodetest.Home(t, func(*home.InitOptions) {})
	for _, bytes := range []int64{100 << 20, 200 << 20} {
		c := nodetest.Load(t, home)
		c.CometBFT.Instrumentation.Prometheus, c.CometBFT.Instrumentation.PrometheusListenAddr = true, ""
		c.App.Join.MemoryBytes = bytes
		n, err := New(t.Context(), c, log.NewNopLogger())
		require.NoError(t, err)
		families, err := registry.Gather()
		require.NoError(t, err)
		found := map[float64]bool{}
		for _, f := range families {
			if f.GetName() == "starling_budget_bytes" {
				for _, m := range f.GetMetric() {
					found[m.GetGauge().GetValue()] = m.GetLabel()[0].GetValue() == "join"
				}
			}
		}
		require.True(t, found[float64(bytes)])
		require.NoError(t, n.Stop())
	}
}
