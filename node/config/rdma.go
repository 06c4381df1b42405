package config

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/starling-kv/starling/transport"
)

// Values of transport.rdma.
const (
	RDMAOff      = "off"
	RDMAAuto     = "auto"     // use RDMA if possible
	RDMARequired = "required" // the node does not start without a device
)

// minRDMAMemory is the memory, in bytes, that one channel with both of its ends needs.
const minRDMAMemory = 64 << 20

func (c Transport) validateRDMA() error {
	for _, id := range c.RDMAPeerIDs() {
		if err := id.Validate(); err != nil {
			return fmt.Errorf("transport.rdma_peers: %w", err)
		}
	}
	fabric, err := c.RDMANetworks()
	switch {
	case err != nil:
		return err
	case !slices.Contains([]string{RDMAOff, RDMAAuto, RDMARequired}, c.RDMA):
		return fmt.Errorf("transport.rdma is %q, it must be %q, %q or %q", c.RDMA, RDMAOff, RDMAAuto, RDMARequired)
	case c.RDMAMemory < minRDMAMemory:
		return fmt.Errorf("transport.rdma_memory is %d, it must be %d (64 MiB) or more", c.RDMAMemory, minRDMAMemory)
	case c.RDMA != RDMAOff && len(fabric) == 0 && len(c.RDMAPeerIDs()) == 0:
		return fmt.Errorf("transport.rdma is %q, but no peer is allowed: name peers in transport.rdma_peers, or a trusted network in transport.rdma_fabric", c.RDMA)
	}
	return nil
}

// RDMAPeerIDs returns the IDs in RDMAPeers as a list.
func (c Transport) RDMAPeerIDs() (ids []transport.ID) {
	for _, id := range splitList(c.RDMAPeers) {
		ids = append(ids, transport.ID(id))
	}
	return ids
}

// RDMANetworks returns the networks in RDMAFabric as a list.
func (c Transport) RDMANetworks() (networks []netip.Prefix, err error) {
	for _, text := range splitList(c.RDMAFabric) {
		p, err := netip.ParsePrefix(text)
		if err != nil || p != p.Masked() || p.Bits() == 0 {
			return nil, fmt.Errorf("transport.rdma_fabric: %q is not a network such as 10.7.0.0/24", text)
		}
		networks = append(networks, p)
	}
	return networks, nil
}

// RDMAPeerCount returns how many peers may use RDMA at most: the named ones, and those at the
// addresses of the networks, of which at most MaxPeers count.
func (c Transport) RDMAPeerCount() int {
	networks, _ := c.RDMANetworks() // validated
	addresses := 0
	for _, p := range networks {
		addresses = min(c.MaxPeers, addresses+1<<min(p.Addr().BitLen()-p.Bits(), 30))
	}
	return len(c.RDMAPeerIDs()) + addresses
}

// AllowsRDMA reports whether a peer at an address may use RDMA.
func (c Transport) AllowsRDMA(peer transport.ID, addr netip.Addr) bool {
	if slices.Contains(c.RDMAPeerIDs(), peer) {
		return true
	}
	networks, err := c.RDMANetworks()
	return err == nil && slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(addr.Unmap().WithZone("")) })
}
