package peers

import (
	"net"
	"net/netip"
)

// groups are the networks of a host, the smallest first. Many hosts in one network cost an attacker
// next to nothing, so they count as one.
//
//	IPv6   /64 a link, /56 a home, /48 a site
//	IPv4   /32 a host, /24 and /16 as routers and CometBFT's address book divide them
//	name   the name itself; all names are one network, since many names can refer to one host
type groups [3]string

// groupsOf returns the networks of host:port.
func groupsOf(hostPort string) groups {
	host, _, err := net.SplitHostPort(hostPort)
	if err != nil {
		host = hostPort
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return groups{host, "names", "names"}
	}
	bits := [3]int{64, 56, 48}
	if ip = ip.Unmap().WithZone(""); ip.Is4() {
		bits = [3]int{32, 24, 16}
	}
	var g groups
	for i, n := range bits {
		prefix, _ := ip.Prefix(n) //nolint:errcheck // an address has that many bits
		g[i] = prefix.String()
	}
	return g
}

// reserved are networks without public hosts, in addition to those that netip knows: networks that
// CometBFT's address book refuses (p2p/netaddress.go, Routable), and prefixes that embed an IPv4
// address, which may be private.
var reserved = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),     // RFC 1122: this network
	netip.MustParsePrefix("2001:db8::/32"), // RFC 3849: documentation
	netip.MustParsePrefix("2001:10::/28"),  // RFC 4843: ORCHID
	netip.MustParsePrefix("64:ff9b::/96"),  // RFC 6052: IPv4 behind a translator
	netip.MustParsePrefix("2002::/16"),     // RFC 3056: IPv4 behind a 6to4 relay
}

// public reports whether host:port is a public IP address: not a name, and not loopback, private,
// link-local or multicast.
func public(hostPort string) bool {
	a, err := netip.ParseAddrPort(hostPort)
	if err != nil {
		return false
	}
	ip := a.Addr().Unmap()
	if !ip.IsGlobalUnicast() || ip.IsPrivate() || ip.Zone() != "" {
		return false
	}
	for _, p := range reserved {
		if p.Contains(ip) {
			return false
		}
	}
	return a.Port() != 0
}
