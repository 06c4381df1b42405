package grpcserver

import (
	"net"
	"net/netip"
	"sync"
)

const (
	// MaxCalls limits the calls in progress, over all connections, and so the memory of requests
	// and responses. localCalls of them are for callers on this machine, so that strangers cannot
	// keep its operator out.
	MaxCalls   = 1024
	localCalls = 128
)

// places are the calls in progress.
type places struct {
	mu    sync.Mutex
	taken int                  // guarded by mu
	hosts map[netip.Prefix]int // guarded by mu
}

// take takes a place for a caller. A host on another machine gets at most half of the places that
// others leave, so that it cannot keep all of them out. release gives the place back; it is nil if
// there is none.
func (p *places) take(caller net.Addr) (release func()) {
	host, local := hostOf(caller)
	p.mu.Lock()
	defer p.mu.Unlock()
	free := MaxCalls - p.taken
	if !local {
		free -= localCalls + p.hosts[host]
	}
	if free <= 0 {
		return nil
	}
	if p.hosts == nil {
		p.hosts = make(map[netip.Prefix]int)
	}
	p.taken++
	p.hosts[host]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.taken--
		if p.hosts[host]--; p.hosts[host] == 0 {
			delete(p.hosts, host)
		}
	}
}

// hostOf returns the host of an address: an IPv4 address or an IPv6 /64. local: it is this machine.
func hostOf(a net.Addr) (host netip.Prefix, local bool) {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return host, false
	}
	ip := t.AddrPort().Addr().Unmap()
	host, _ = ip.Prefix(min(64, ip.BitLen())) //nolint:errcheck // an address has that many bits
	return host, ip.IsLoopback()
}
