package testnet

import (
	"fmt"

	"github.com/starling-kv/starling/e2e/runner"
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

// setRanges writes into the home which storage nodes keep which keys, each where the node reaches
// it.
func (n *Node) setRanges(at map[*Node]string) error {
	if n.ranges == nil {
		return nil
	}
	ranges := make([]runner.Range, len(n.ranges))
	for i, nodes := range n.ranges {
		ranges[i].First = firstKey(i, len(ranges))
		for _, node := range nodes {
			name, err := node.Home.Transport() // of itself, which it does not dial
			if p2p, ok := at[node]; ok {
				name, err = node.Home.TransportAt(p2p)
			}
			if err != nil {
				return err
			}
			ranges[i].Nodes = append(ranges[i].Nodes, name)
		}
	}
	return n.Home.SetRanges(ranges)
}
