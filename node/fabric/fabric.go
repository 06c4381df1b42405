// Package fabric provides the RDMA channels of a node according to its settings, and their metrics.
// A node or storage node has one instance for all connections that it dials and serves.
//
//	[transport] rdma ──► Open ──► Paths ──► Sides of tcp's dialers and servers
//	                               └──► log, metrics: reasons for missing channels
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

// Paths manages a process's RDMA channels. A nil *Paths, or one with a missing prerequisite, makes
// none.
type Paths struct {
	fabric   *rdma.Fabric
	missing  *rdma.MissingError // why RDMA is not possible; then no other field is set
	log      log.Logger
	metrics  *metrics
	registry prometheus.Registerer

	mu struct {
		sync.Mutex
		// peers are those that had, or might have had, a channel; at most maxPeers.
		peers map[transport.ID]*peer
		noted uint64 // counts changes of peers
		// connected counts connections by peer: those dialled, and those whose peer has proposed a
		// channel. served are the latter, by their contexts.
		connected map[transport.ID]int
		served    map[context.Context]struct{}
	}
}

// Open returns the RDMA channels according to the settings; nil: RDMA is off. If RDMA is not
// possible here, that is logged and shown by Status; if RDMA is required, it is an error. registry
// nil: no metrics.
func Open(c *config.Config, logger log.Logger, registry prometheus.Registerer) (*Paths, error) {
	o := c.App.Transport
	if o.RDMA == config.RDMAOff {
		return nil, nil //nolint:nilnil // RDMA is off
	}
	logger = logger.With("module", "rdma")
	addrs, err := Addrs(c)
	if err != nil {
		return nil, err
	}
	if missing := rdma.FirstMissing(rdma.Check(rdma.CheckOptions{Addrs: addrs, Memory: o.RDMAMemory, Peers: o.RDMAPeerCount()})); missing != nil {
		err := fmt.Errorf("RDMA is not possible here: %w", missing)
		if o.RDMA == config.RDMARequired {
			err = fmt.Errorf("transport.rdma is %q: %w", o.RDMA, err)
			if !rdma.Supported {
				err = config.Invalid(err)
			}
			return nil, err
		}
		logger.Error("RDMA is not possible: all responses use TLS", "err", err)
		return &Paths{missing: missing}, nil
	}
	return open(o, logger, registry, rdma.New)
}

func open(o config.Transport, logger log.Logger, registry prometheus.Registerer, make func(rdma.Options) *rdma.Fabric) (*Paths, error) {
	p := &Paths{log: logger, metrics: newMetrics(o.RDMAPeerIDs()), registry: registry}
	p.mu.peers, p.mu.connected, p.mu.served = map[transport.ID]*peer{}, map[transport.ID]int{}, map[context.Context]struct{}{}
	p.fabric = make(rdma.Options{Allowed: o.AllowsRDMA, Memory: o.RDMAMemory, Peers: o.RDMAPeerCount(), Hooks: p.hooks()})
	p.metrics.stats = p.fabric.Stats
	if registry == nil {
		return p, nil
	}
	if err := registry.Register(p.metrics); err != nil {
		return nil, errors.Join(err, p.fabric.Close())
	}
	return p, nil
}

// Sides returns the hooks for dialers and servers; nil: none.
func (p *Paths) Sides() tcp.Sides {
	if p == nil || p.fabric == nil {
		return nil
	}
	return &sides{p.fabric, p}
}

// Close ends all channels. Connections stay open.
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
		p.log.Info("Responses of a peer use RDMA", "peer", id, "address", w.From, "packets", min(w.MTU, w.PeerMTU))
	}
	h.Down = func(id transport.ID, why error) {
		down(id, why)
		again := false
		p.note(id, func(of *peer) {
			again = of.reason == why.Error()
			of.reason, of.fallback, of.fallbackTime = why.Error(), rdma.Reason(why), time.Now().UTC()
		})
		if !again {
			p.log.Info("No RDMA channel: responses use TLS", "peer", id, "why", why)
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

// Addrs returns the addresses that connections of this host can have: that of transport.laddr, or,
// if that means all interfaces, those of all interfaces that are up.
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
		return nil, fmt.Errorf("get the addresses of this host: %w", err)
	}
	var addrs []netip.Addr
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLoopback() && !p.Addr().IsLinkLocalUnicast() {
			addrs = append(addrs, p.Addr().Unmap())
		}
	}
	// IPv4 first: peers are usually named by it.
	slices.SortStableFunc(addrs, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
	return addrs, nil
}
