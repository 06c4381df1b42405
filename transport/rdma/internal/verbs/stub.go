//go:build !(cgo && linux && rdma)

package verbs

import "net/netip"

// Supported reports whether this program was built with RDMA.
const Supported = false

// Info describes a port.
type Info struct {
	Device string
	Port   int
	State  string // libibverbs' name for it
	MTU    int
	GIDs   []GID
	Err    error // why the port cannot be used; nil: it can
}

// List returns the ports of all devices.
func List() ([]Info, error) { return nil, ErrNotBuilt }

// Open opens the device whose port has addr. Its completion queue has room for that many
// completions.
func Open(netip.Addr, int) (Device, error) { return nil, ErrNotBuilt }
