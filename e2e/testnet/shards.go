package testnet

import (
	"fmt"
	"slices"

	"github.com/starling-kv/starling/e2e/runner"
)

// storageNodes returns the storage nodes, and those of each range: they are assigned to ranges in
// turn.
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

// replicated reports whether each range has two storage nodes or more, as the default settings of a
// sharded node require.
func (n *Node) replicated() bool {
	return !slices.ContainsFunc(n.ranges, func(nodes []*Node) bool { return len(nodes) < 2 })
}

// firstKey is the first key of range i of count. The initial keys are hex digits, which the ranges
// divide evenly; the keys that clients share are in the first range.
func firstKey(i, count int) string {
	if i == 0 {
		return ""
	}
	return fmt.Sprintf("%sinitial/%02x", Prefix, i*256/count)
}

// setRanges writes the ranges and their storage nodes into the home, with the addresses at which
// the node reaches them.
func (n *Node) setRanges(at map[*Node]string) error {
	if n.ranges == nil {
		return nil
	}
	ranges := make([]runner.Range, len(n.ranges))
	for i, nodes := range n.ranges {
		ranges[i].First = firstKey(i, len(ranges))
		for _, node := range nodes {
			name, err := node.Home.Transport() // its own address, since it does not dial itself
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
