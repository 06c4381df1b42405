package rdma

import (
	"net/netip"

	"github.com/starling-kv/starling/transport/rdma/internal/verbs"
)

// Port is a port of a device.
type Port struct {
	Device string
	Addrs  []netip.Addr // of connections that can have a path; unknown on InfiniBand
	Err    error        // why the port cannot be used; nil: it can
}

// Ports returns the ports of all devices. The error is an errors.ErrUnsupported if the program, the
// library or the kernel does not support RDMA.
func Ports() ([]Port, error) {
	infos, err := verbs.List()
	if err != nil {
		return nil, err
	}
	ports := make([]Port, 0, len(infos))
	for _, i := range infos {
		ports = append(ports, portOf(i))
	}
	return ports, nil
}

// portOf omits link-local addresses, since several interfaces can have the same one.
func portOf(i verbs.Info) Port {
	p := Port{Device: i.Device, Err: i.Err}
	for _, g := range i.GIDs {
		if a := netip.AddrFrom16(g).Unmap(); a.IsGlobalUnicast() {
			p.Addrs = append(p.Addrs, a)
		}
	}
	return p
}
