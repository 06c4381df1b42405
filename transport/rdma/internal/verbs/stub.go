//go:build !(cgo && linux && rdma)

package verbs

import "net/netip"

// Supported reports whether this program was built with RDMA.
const Supported = false

// Info describes a port that was found.
type Info struct {
	Device string
	Port   int
	State  string // as libibverbs calls it
	MTU    int
	GIDs   []GID
	Err    error // why it cannot be used
}

// List returns the ports of all devices.
func List() ([]Info, error) { return nil, ErrNotBuilt }

// Open opens the device whose port has an address, with room for completions of its queues.
func Open(netip.Addr, int) (Device, error) { return nil, ErrNotBuilt }
