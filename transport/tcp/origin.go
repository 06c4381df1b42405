package tcp

import (
	"net"
	"net/netip"
)

// origin is the source of a connection.
type origin struct {
	name string // address without the port
	// nets are the networks of the address, the widest first. The last one is the host, to which
	// most limits apply.
	nets []string
}

// widths are the prefix lengths of the IPv6 networks that are counted. Providers assign a customer
// something between a /48 and a /64 (RFC 6177, section 2). Each IPv4 address is a network of its
// own.
var widths = [...]int{48, 56, 64}

func originOf(a net.Addr) origin {
	name, _, err := net.SplitHostPort(a.String())
	if err != nil {
		name = a.String()
	}
	ip, err := netip.ParseAddr(name)
	if err != nil {
		return origin{name, []string{name}}
	}
	if ip = ip.Unmap(); ip.Is4() {
		return origin{ip.String(), []string{ip.String()}}
	}
	nets := make([]string, 0, len(widths))
	for _, bits := range widths {
		prefix, _ := ip.Prefix(bits) //nolint:errcheck // IPv6 has more bits
		nets = append(nets, prefix.String())
	}
	return origin{name, nets}
}

func (o origin) host() string { return o.nets[len(o.nets)-1] }

// at returns the network at an index of widths.
func (o origin) at(width int) string { return o.nets[min(width, len(o.nets)-1)] }
