package testnet

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"

	"github.com/starling-kv/starling/e2e/relay/link"
	"github.com/starling-kv/starling/e2e/runner"
)

// transportOffset is the difference between a node's transport port and its p2p port, and so
// between the two listeners of a link.
const transportOffset = runner.TransportOffset

// planLinks plans the relay: two listeners, for p2p and for the transport, for each node and each
// peer that it dials. Peers in a map of the ranges have the same two for all nodes. listen returns
// the p2p listener of link k as host and port; the transport gets port + 10. target returns the
// address at which the relay reaches a node's p2p. The returned addresses are those of the p2p
// listeners, by dialer and peer, with relayHost as the host.
func planLinks(nodes []*Node, relayHost string, listen func(k int) (host string, port int), target func(*Node) (host string, port int),
) (links []link.Link, addresses map[*Node]map[*Node]string) {
	addresses = map[*Node]map[*Node]string{}
	mapped := map[*Node]string{}
	k := 0
	for _, from := range nodes {
		addresses[from] = map[*Node]string{}
		for _, to := range from.Peers {
			if address, known := mapped[to]; known {
				addresses[from][to] = address
				continue
			}
			listenHost, listenPort := listen(k)
			targetHost, targetPort := target(to)
			k++
			name := from.Name
			if to.mapped {
				name, mapped[to] = "", hostPort(relayHost, listenPort)
			}
			for _, offset := range []int{0, transportOffset} {
				links = append(links, link.Link{
					From: name, To: to.Name, Listen: hostPort(listenHost, listenPort+offset), Target: hostPort(targetHost, targetPort+offset),
				})
			}
			addresses[from][to] = hostPort(relayHost, listenPort)
		}
	}
	return links, addresses
}

// Ports of the relay in its container: first the control endpoint, then the ports of each link.
const (
	relayFirstPort    = 30000
	relayPortsPerLink = 20 // p2p, and the transport at + 10
)

// RelayContainers lets nodes in containers reach their peers through the relay. Containers find
// each other and the relay by their names. It returns the relay's configuration.
func RelayContainers(nodes []*Node, relay string) (link.Config, error) {
	links, addresses := planLinks(nodes, relay,
		func(k int) (string, int) { return "0.0.0.0", relayFirstPort + relayPortsPerLink*(k+1) },
		func(n *Node) (string, int) { return n.Name, p2pInContainer })
	return link.Config{Control: hostPort("0.0.0.0", relayFirstPort), Links: links}, setPeers(addresses)
}

// NameContainers lets nodes in containers dial each other by name, without a relay.
func NameContainers(nodes []*Node) error {
	return setPeers(direct(nodes, func(n *Node) string { return hostPort(n.Name, p2pInContainer) }))
}

// direct returns the addresses of all peers if there is no relay between the nodes.
func direct(nodes []*Node, address func(*Node) string) map[*Node]map[*Node]string {
	addresses := map[*Node]map[*Node]string{}
	for _, from := range nodes {
		addresses[from] = map[*Node]string{}
		for _, to := range from.Peers {
			addresses[from][to] = address(to)
		}
	}
	return addresses
}

// countLinks returns the number of links.
func countLinks(nodes []*Node) (n int) {
	for _, node := range nodes {
		n += len(node.Peers)
	}
	return n
}

func hostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// pairs returns all pairs of sender and receiver with a link between them.
func pairs(nodes []*Node) (all [][2]string) {
	for _, node := range nodes {
		for _, peer := range node.Peers {
			all = append(all, [2]string{node.Name, peer.Name}, [2]string{peer.Name, node.Name})
		}
	}
	return all
}

// touching returns the pairs with at least one of the names; crossing those with exactly one.
func touching(all [][2]string, names []string) [][2]string {
	return slices.DeleteFunc(slices.Clone(all), func(p [2]string) bool {
		return !slices.Contains(names, p[0]) && !slices.Contains(names, p[1])
	})
}

func crossing(all [][2]string, names []string) [][2]string {
	return slices.DeleteFunc(slices.Clone(all), func(p [2]string) bool {
		return slices.Contains(names, p[0]) == slices.Contains(names, p[1])
	})
}

// errNoRelay is the error of a step or setting that needs a relay.
var errNoRelay = errors.New("the network has no relay between its nodes")

// treat sets the treatment of pairs of nodes.
func (n *Network) treat(ctx context.Context, pairs [][2]string, t link.Treatment) error {
	settings := make([]link.Setting, 0, len(pairs))
	for _, p := range pairs {
		settings = append(settings, link.Setting{From: p[0], To: p[1], Treatment: t})
	}
	links := n.options.Provider.Links()
	switch {
	case len(settings) == 0: // a single node
		return nil
	case links != nil:
		return links.Set(ctx, settings...)
	case t == link.Treatment{}:
		return nil
	}
	return errNoRelay
}
