package rdma

import (
	"net/netip"

	"github.com/starling-kv/starling/transport/rdma/internal/verbs"
)

// Port is one of a device.
type Port struct {
	Device string
	Addrs  []netip.Addr // of connections that can have a path; on InfiniBand they are not known
	Err    error        // why the port cannot be used; nil: it can
}

// Ports returns those of all devices. It fails with an error that is errors.ErrUnsupported where
// the program, the library or the kernel has no RDMA.
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

// portOf leaves out link-local addresses, which more than one interface can have.
func portOf(i verbs.Info) Port {
	p := Port{Device: i.Device, Err: i.Err}
	for _, g := range i.GIDs {
		if a := netip.AddrFrom16(g).Unmap(); a.IsGlobalUnicast() {
			p.Addrs = append(p.Addrs, a)
		}
	}
	return p
}
