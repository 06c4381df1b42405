package node

import (
	cometnode "github.com/cometbft/cometbft/node"
	"github.com/cometbft/cometbft/p2p"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/relay"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// openRelay makes the relay of blocks, if there is to be one. A node that no peer can reach has
// none.
func (n *Node) openRelay() error {
	mode := n.config.App.Transport.Relay
	if mode == config.RelayOff || n.serving.reactor == nil {
		return nil
	}
	key, err := config.TransportKey(n.nodeKey)
	if err != nil {
		return err
	}
	o := relay.Options{
		Logger: n.log.With("module", "relay"), ChainID: n.genesis.ChainID, Address: n.serving.reactor.Of,
		Dialer: tcp.NewDialer(tcp.Options{Key: key, ChainID: n.genesis.ChainID, Sides: n.paths.Sides()}),
	}
	if mode == config.RelayRDMA {
		o.Path = hasPath
	}
	if n.config.CometBFT.Instrumentation.Prometheus {
		o.Hooks = newRelayMetrics(prometheus.DefaultRegisterer).hooks()
	}
	n.relay = relay.New(o)
	return nil
}

// hasPath reports whether a connection has a path past TLS now.
func hasPath(c transport.Conn) bool {
	p, is := c.(interface{ HasPath() bool })
	return is && p.HasPath()
}

// wrapConsensus is Options.WrapConsensus of CometBFT.
func (n *Node) wrapConsensus() func(*cometnode.Node) (p2p.Reactor, error) {
	if n.relay == nil {
		return nil
	}
	return n.relay.Wrap
}

// relayMetrics are what operators watch of the relay.
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
		sent: counter("sent_total", "Proposals and parts of blocks that were relayed to peers, by kind and outcome: taken, or else they went by p2p: "+
			"unwanted (the peer is elsewhere), late (after 100 ms), busy, refused, failed."),
		received: counter("received_total", "Proposals and parts of blocks that peers relayed to this node, by kind and outcome: taken, again (it was "+
			"there), unwanted, busy, refused (it is false, or of a stranger), failed."),
		connections: prometheus.NewGauge(prometheus.GaugeOpts(opts("connections", "Peers that this node can relay to."))),
	}
	for _, kind := range relay.Kinds { // so that what has not happened is 0, not absent
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
