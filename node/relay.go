package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/relay"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// openRelay creates the relay. Without transport.relay, or if peers cannot reach the transport of
// this node, it only pushes over p2p.
func (n *Node) openRelay() error {
	mode := n.config.App.Transport.Relay
	o := relay.Options{Logger: n.log.With("module", "relay"), ChainID: n.genesis.ChainID}
	if mode != config.RelayOff && n.serving.reactor != nil {
		key, err := config.TransportKey(n.nodeKey)
		if err != nil {
			return err
		}
		o.Address = n.serving.reactor.Of
		o.Dialer = tcp.NewDialer(tcp.Options{Key: key, ChainID: n.genesis.ChainID, Sides: n.paths.Sides()})
		if mode == config.RelayRDMA {
			o.Path = hasPath
		}
		if n.config.CometBFT.Instrumentation.Prometheus {
			o.Hooks = newRelayMetrics(n.registry()).hooks()
		}
	}
	n.relay = relay.New(o)
	return nil
}

// hasPath reports whether a connection has an RDMA channel, which bypasses TLS.
func hasPath(c transport.Conn) bool {
	p, is := c.(interface{ HasPath() bool })
	return is && p.HasPath()
}

// relayMetrics are the relay's metrics.
type relayMetrics struct {
	sent, received *prometheus.CounterVec // by kind and outcome
	connections    prometheus.Gauge
}

func newRelayMetrics(registry prometheus.Registerer) *relayMetrics {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "starling", Subsystem: "relay", Name: name, Help: help}
	}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts(opts(name, help)), []string{"kind", "outcome"})
	}
	m := &relayMetrics{
		sent: counter("sent_total", "Proposals and block parts relayed to peers, by kind and outcome: taken; sent over p2p instead if unwanted (peer at another height or round), "+
			"late (after 100 ms), busy, refused or failed."),
		received: counter("received_total", "Proposals and block parts that peers relayed to this node, by kind and outcome: taken, again (received "+
			"before), unwanted, busy, refused (invalid, or from an unknown peer) or failed."),
		connections: prometheus.NewGauge(prometheus.GaugeOpts(opts("connections", "Open connections for relaying proposals and block parts to peers."))),
	}
	for _, kind := range relay.Kinds { // export zeros instead of absent series
		for _, outcome := range relay.Outcomes {
			m.sent.WithLabelValues(kind, outcome)
			m.received.WithLabelValues(kind, outcome)
		}
	}
	registry.MustRegister(m.sent, m.received, m.connections)
	return m
}

func (m *relayMetrics) hooks() relay.Hooks {
	return relay.Hooks{
		Sent:        func(kind, outcome string) { m.sent.WithLabelValues(kind, outcome).Inc() },
		Received:    func(kind, outcome string) { m.received.WithLabelValues(kind, outcome).Inc() },
		Connections: func(by int) { m.connections.Add(float64(by)) },
	}
}
