package config

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/starling-kv/starling/transport"
)

// PortOffset is the difference between the ports of a node's transport and its p2p, unless
// transport.laddr is set.
const PortOffset = 10

// TransportAddress returns the host:port at which a node with this configuration serves joining
// nodes; "": it serves none.
func TransportAddress(c *Config) (string, error) {
	if c.App.Transport.ListenAddress != autoAddress {
		_, address, found := strings.Cut(c.App.Transport.ListenAddress, "://")
		if !found {
			address = c.App.Transport.ListenAddress
		}
		return address, nil
	}
	_, address, found := strings.Cut(c.CometBFT.P2P.ListenAddress, "://")
	if !found {
		address = c.CometBFT.P2P.ListenAddress
	}
	if address == "" {
		return "", nil
	}
	shifted, err := shiftPort(address)
	if err != nil {
		return "", fmt.Errorf(`transport.laddr is "auto", p2p.laddr is %q: %w`, c.CometBFT.P2P.ListenAddress, err)
	}
	return shifted, nil
}

// shiftPort converts the address of a node's p2p to that of its transport.
func shiftPort(hostPort string) (string, error) {
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil {
		return "", err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return "", fmt.Errorf("port %q: %w", port, err)
	}
	if n == 0 {
		return net.JoinHostPort(host, "0"), nil // p2p uses any free port: the transport does, too
	}
	if n+PortOffset > 65535 {
		return "", fmt.Errorf("port %d + %d is too large: set transport.laddr", n, PortOffset)
	}
	return net.JoinHostPort(host, strconv.FormatUint(n+PortOffset, 10)), nil
}

// transportAddresses parses a list of addresses.
func transportAddresses(list string) ([]transport.Address, error) {
	var addresses []transport.Address
	for _, s := range splitList(list) {
		a, err := transport.ParseAddress(s)
		if err != nil {
			return nil, err
		}
		addresses = append(addresses, a)
	}
	return addresses, nil
}

func splitList(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' })
}

// JoinAddresses returns the transports that a joining node dials first: those in join.peers, and
// those of p2p's peers and seeds, which are assumed to listen at PortOffset above the p2p port. The
// error matches ErrInvalid.
func JoinAddresses(c *Config) ([]transport.Address, error) {
	addresses, err := joinAddresses(c)
	return addresses, Invalid(err)
}

func joinAddresses(c *Config) ([]transport.Address, error) {
	addresses, err := transportAddresses(c.App.Join.Peers)
	if err != nil {
		return nil, fmt.Errorf("join.peers: %w", err)
	}
	for _, list := range []struct{ setting, peers string }{
		{"p2p.persistent_peers", c.CometBFT.P2P.PersistentPeers}, {"p2p.seeds", c.CometBFT.P2P.Seeds},
	} {
		for _, s := range splitList(list.peers) {
			a, err := transport.ParseAddress(s)
			if err == nil {
				a.HostPort, err = shiftPort(a.HostPort)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", list.setting, err)
			}
			addresses = append(addresses, a)
		}
	}
	return addresses, nil
}

// PrivatePeers returns the ids of p2p.private_peer_ids, whose addresses are never advertised.
func PrivatePeers(c *Config) []string { return splitList(c.CometBFT.P2P.PrivatePeerIDs) }

// NamedPeers returns the ids of the peers that the operator has named in join.peers or for p2p. The
// transport reserves slots for them. Entries that are not an id are ignored.
func NamedPeers(c *Config) (ids []transport.ID) {
	for _, list := range []string{
		c.App.Join.Peers, c.CometBFT.P2P.PersistentPeers, c.CometBFT.P2P.UnconditionalPeerIDs, c.CometBFT.P2P.PrivatePeerIDs,
	} {
		for _, s := range splitList(list) {
			id, _, _ := strings.Cut(s, "@")
			if transport.ID(id).Validate() == nil && !slices.Contains(ids, transport.ID(id)) {
				ids = append(ids, transport.ID(id))
			}
		}
	}
	return ids
}
