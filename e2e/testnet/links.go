package testnet

import (
	"context"
	"net"
	"slices"
	"strconv"

	"github.com/starling-kv/starling/e2e/relay/link"
	"github.com/starling-kv/starling/e2e/runner"
)

// transportOffset is what lies between a node's p2p port and that of its transport, and so between
// the two listeners of a link.
const transportOffset = runner.TransportOffset

// planLinks plans the relay: for each node and each peer that it dials two listeners, for p2p and
// for the transport. listen gives the p2p listener of link k as host and port, and the transport
// gets port + 10; target is where the relay reaches a node's p2p. The addresses that it returns are
// those of the p2p listeners, by who dials and whom, with relayHost as the host.
func planLinks(nodes []*Node, relayHost string, listen func(k int) (host string, port int), target func(*Node) (host string, port int),
) (links []link.Link, addresses map[*Node]map[*Node]string) {
	addresses = map[*Node]map[*Node]string{}
	k := 0
	for _, from := range nodes {
		addresses[from] = map[*Node]string{}
		for _, to := range from.Peers {
			listenHost, listenPort := listen(k)
			targetHost, targetPort := target(to)
			k++
			for _, offset := range []int{0, transportOffset} {
				links = append(links, link.Link{
					From: from.Name, To: to.Name, Listen: hostPort(listenHost, listenPort+offset), Target: hostPort(targetHost, targetPort+offset),
				})
			}
			addresses[from][to] = hostPort(relayHost, listenPort)
		}
	}
	return links, addresses
}

// countLinks is how many links k there are.
func countLinks(nodes []*Node) (n int) {
	for _, node := range nodes {
		n += len(node.Peers)
	}
	return n
}

func hostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// pairs are all senders and receivers with a link between them.
func pairs(nodes []*Node) (all [][2]string) {
	for _, node := range nodes {
		for _, peer := range node.Peers {
			all = append(all, [2]string{node.Name, peer.Name}, [2]string{peer.Name, node.Name})
		}
	}
	return all
}

// touching are the pairs with at least one of the names; crossing, those with exactly one.
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

// treat sets how the bytes of pairs travel.
func (n *Network) treat(ctx context.Context, pairs [][2]string, t link.Treatment) error {
	settings := make([]link.Setting, 0, len(pairs))
	for _, p := range pairs {
		settings = append(settings, link.Setting{From: p[0], To: p[1], Treatment: t})
	}
	if len(settings) == 0 { // a single node
		return nil
	}
	return n.options.Provider.Links().Set(ctx, settings...)
}
