package testnet

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/starling-kv/starling/node/config"
)

// storageNodes are the storage nodes, and those of each range: they take turns.
func (n *Network) storageNodes() (all []*Node, ranges [][]*Node) {
	if n.Manifest.Shards == 0 {
		return nil, nil
	}
	ranges = make([][]*Node, n.Manifest.Shards)
	for _, node := range n.nodes {
		if node.Stores() {
			i := len(all) % len(ranges)
			ranges[i] = append(ranges[i], node)
			all = append(all, node)
		}
	}
	return all, ranges
}

// firstKey is where range i of count begins. The initial keys are hex digits, which the ranges
// divide evenly; those that clients fight for are in the first.
func firstKey(i, count int) string {
	if i == 0 {
		return ""
	}
	return fmt.Sprintf("%sinitial/%02x", Prefix, i*256/count)
}

// writeRanges writes into the home which storage nodes keep which keys.
func (n *Node) writeRanges(at map[*Node]string) error {
	if n.ranges == nil {
		return nil
	}
	var file strings.Builder
	for i, nodes := range n.ranges {
		var names []string
		for _, node := range nodes {
			name, err := node.transport(at)
			if err != nil {
				return err
			}
			names = append(names, strconv.Quote(name))
		}
		fmt.Fprintf(&file, "[[range]]\nfirst = %q\nnodes = [%s]\n\n", firstKey(i, len(n.ranges)), strings.Join(names, ", "))
	}
	return os.WriteFile(filepath.Join(n.Home.Dir, config.DefaultStorageNodesFile), []byte(file.String()), 0o644)
}

// transport is how a node that has these addresses of others names the transport of n.
func (n *Node) transport(at map[*Node]string) (string, error) {
	p2p, ok := at[n]
	if !ok { // it is the node itself, which does not dial it
		_, p2p, _ = strings.Cut(n.Home.Peer(), "@")
	}
	host, port, err := net.SplitHostPort(p2p)
	if err != nil {
		return "", err
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return "", err
	}
	return n.Home.ID() + "@" + hostPort(host, number+transportOffset), nil
}
