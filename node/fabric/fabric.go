// Package fabric gives a node the paths by RDMA that its settings ask for, and counts them. Both a
// node and a storage node have one, for all connections that they dial and serve.
//
//	[transport] rdma ──► Open ──► Paths ──► Sides of tcp's dialers and servers
//	                               └──► log, metrics: reasons for which there is no path
package fabric

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/rdma"
	"github.com/starling-kv/starling/transport/tcp"
)

// Paths are a process's paths by RDMA. A nil one makes none, and neither does one that lacks
// something.
type Paths struct {
	fabric   *rdma.Fabric
	lacking  *rdma.LackingError // why none can be made, and the rest is not set; nil: they can
	log      log.Logger
	metrics  *metrics
	registry prometheus.Registerer

	mu struct {
		sync.Mutex
		// peers are those that had a path, or might have had one; at most maxPeers.
		peers map[transport.ID]*peer
		noted uint64 // counts what was noted of them
		// connected counts connections by peer: those dialled, and those whose peer has proposed a
		// path. served are the latter, by their contexts.
		connected map[transport.ID]int
		served    map[context.Context]struct{}
	}
}

// Open returns the paths that the settings ask for; nil: none, because they are off. If they cannot
// be made here, that is logged, and Status says it; where they are required it is an error.
// registry nil: nothing is counted.
func Open(c *config.Config, logger log.Logger, registry prometheus.Registerer) (*Paths, error) {
	o := c.App.Transport
	if o.RDMA == config.RDMAOff {
		return nil, nil //nolint:nilnil // no paths
	}
	logger = logger.With("module", "rdma")
	addrs, err := Addrs(c)
	if err != nil {
		return nil, err
	}
	if lacking := rdma.FirstLacking(rdma.Check(rdma.CheckOptions{Addrs: addrs, Memory: o.RDMAMemory})); lacking != nil {
		err := fmt.Errorf("RDMA is not possible here: %w", lacking)
		if o.RDMA == config.RDMARequired {
			err = fmt.Errorf("transport.rdma is %q: %w", o.RDMA, err)
			if !rdma.Supported {
				err = config.Invalid(err)
			}
			return nil, err
		}
		logger.Error("All answers come over TLS", "err", err)
		return &Paths{lacking: lacking}, nil
	}
	return open(o, logger, registry, rdma.New)
}

func open(o config.Transport, logger log.Logger, registry prometheus.Registerer, make func(rdma.Options) *rdma.Fabric) (*Paths, error) {
	p := &Paths{log: logger, metrics: newMetrics(o.RDMAPeerIDs()), registry: registry}
	p.mu.peers, p.mu.connected, p.mu.served = map[transport.ID]*peer{}, map[transport.ID]int{}, map[context.Context]struct{}{}
	p.fabric = make(rdma.Options{Allowed: o.AllowsRDMA, Memory: o.RDMAMemory, Hooks: p.hooks()})
	p.metrics.stats = p.fabric.Stats
	if registry == nil {
		return p, nil
	}
	if err := registry.Register(p.metrics); err != nil {
		return nil, errors.Join(err, p.fabric.Close())
	}
	return p, nil
}

// Sides returns what dialers and servers are given; nil: there are none.
func (p *Paths) Sides() tcp.Sides {
	if p == nil || p.fabric == nil {
		return nil
	}
	return &sides{p.fabric, p}
}

// Close ends all paths. Connections stay.
func (p *Paths) Close() error {
	if p == nil || p.fabric == nil {
		return nil
	}
	if p.registry != nil {
		p.registry.Unregister(p.metrics)
	}
	return p.fabric.Close()
}

func (p *Paths) hooks() rdma.Hooks {
	h := p.metrics.hooks()
	up, down, leaked, received, sent := h.Up, h.Down, h.Leaked, h.Received, h.Sent
	h.Up = func(id transport.ID, w rdma.Way) {
		up(id, w)
		p.note(id, func(of *peer) { of.reason = "" })
		p.log.Info("Answers of a peer come by RDMA", "peer", id, "address", w.From, "packets", min(w.MTU, w.PeerMTU))
	}
	h.Down = func(id transport.ID, why error) {
		down(id, why)
		again := false
		p.note(id, func(of *peer) {
			again = of.reason == why.Error()
			of.reason, of.fallback, of.fallbackTime = why.Error(), rdma.Reason(why), time.Now().UTC()
		})
		if !again {
			p.log.Info("No path by RDMA: answers come over TLS", "peer", id, "why", why)
		}
	}
	h.Received = func(id transport.ID, n int) {
		received(id, n)
		p.note(id, func(of *peer) { of.received += uint64(n) })
	}
	h.Sent = func(id transport.ID, n int) {
		sent(id, n)
		p.note(id, func(of *peer) { of.sent += uint64(n) })
	}
	h.Leaked = func(why error) {
		leaked(why)
		p.log.Error("RDMA: a queue pair could not be released; its memory stays locked until this process ends", "err", why)
	}
	return h
}

// Addrs returns the addresses that connections of this host can have: that of transport.laddr,
// unless it means all interfaces, or those of all interfaces that are up.
func Addrs(c *config.Config) ([]netip.Addr, error) {
	address, err := config.TransportAddress(c)
	if err != nil {
		return nil, err
	}
	if host, _, err := net.SplitHostPort(address); err == nil {
		if a, err := netip.ParseAddr(host); err == nil && !a.IsUnspecified() {
			return []netip.Addr{a.Unmap()}, nil
		}
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("the addresses of this host: %w", err)
	}
	var addrs []netip.Addr
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLoopback() && !p.Addr().IsLinkLocalUnicast() {
			addrs = append(addrs, p.Addr().Unmap())
		}
	}
	// IPv4 first: it is what peers are usually named by.
	slices.SortStableFunc(addrs, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
	return addrs, nil
}
