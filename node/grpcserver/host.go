package grpcserver

import (
	"net"
	"net/netip"
)

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
