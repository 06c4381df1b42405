package verbs

import (
	"net"
	"net/netip"
)

// infinibandAddress is the length in bytes of an IP over InfiniBand hardware address, which ends
// with the GID (RFC 4391, section 9.1.1).
const infinibandAddress = 20

// gidsOf returns the GIDs that a port with an IP address can have: on RoCE v2 the address itself
// (InfiniBand specification, annex A17), on InfiniBand the end of the hardware address.
func gidsOf(addr netip.Addr, interfaces []link) []GID {
	addr = addr.Unmap().WithZone("")
	gids := []GID{addr.As16()}
	for _, l := range interfaces {
		if len(l.hardware) != infinibandAddress {
			continue
		}
		for _, a := range l.addrs {
			if a == addr {
				gids = append(gids, GID(l.hardware[4:]))
			}
		}
	}
	return gids
}

// link is a network interface.
type link struct {
	hardware net.HardwareAddr
	addrs    []netip.Addr
}

// links returns the network interfaces of this host. Interfaces and addresses that cannot be read
// are omitted, so their GIDs are not found.
func links() (all []link) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for _, i := range interfaces {
		l := link{hardware: i.HardwareAddr}
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				l.addrs = append(l.addrs, p.Addr().Unmap())
			}
		}
		all = append(all, l)
	}
	return all
}
