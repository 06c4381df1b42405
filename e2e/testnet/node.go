package testnet

import (
	"fmt"
	"path/filepath"
	"strings"

	cfg "github.com/cometbft/cometbft/config"

	"github.com/starling-kv/starling/e2e/manifest"
	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/internal/ports"
)

// Node is one node of a network. Its fields are set before it is started; Program is changed by an
// upgrade, while it is down.
type Node struct {
	Name string
	manifest.Node
	Home    *runner.Home // its folder; RPC and metrics as this machine reaches them
	Program string       // path on this machine: starlingd or byzantine
	Env     []string     // NAME=value, settings in addition to those in its home
	Peers   []*Node      // nodes that it dials
	PeerRPC string       // URL of its RPC server for other nodes

	seed uint64 // of its misbehaviour
	// ranges are the storage nodes of each range, if the node is a storage node or uses them; nil
	// otherwise
	ranges [][]*Node
	// mapped: it is in a signed map of the ranges, in which it has one address
	mapped bool
}

// Lies reports whether the node is Byzantine.
func (n *Node) Lies() bool { return n.Lie != "" }

// Stores reports whether the node is a storage node, which has no blocks and answers no clients.
func (n *Node) Stores() bool { return n.Mode == manifest.Storage }

// Args returns the program's arguments, for a home at the given path as the program sees it.
func (n *Node) Args(home string) []string {
	switch {
	case n.Lies():
		args := []string{"--home", home, "--lie", n.Lie, "--seed", fmt.Sprint(n.seed)}
		if n.Stores() {
			args = append(args, "--storage")
		}
		return args
	case n.Stores():
		return []string{"storage", "start", "--home", home}
	}
	return []string{"start", "--home", home}
}

// ServeAt sets the addresses at which the node listens (host:port, as its program binds them), the
// ports of this machine that lead to them, in the order of runner.Home, and the URL of its RPC
// server for other nodes.
func (n *Node) ServeAt(listen runner.Listen, held *ports.Ports, peerRPC string) error {
	n.PeerRPC = peerRPC
	return n.Home.Serve(listen, held)
}

// SetPeers configures the peers that the node dials, each at an address of the relay, and the
// storage nodes with their ranges.
func (n *Node) SetPeers(at map[*Node]string) error {
	names := make([]string, 0, len(n.Peers))
	for _, peer := range n.Peers {
		if peer.Stores() {
			continue
		}
		names = append(names, peer.Home.PeerAt(at[peer]))
	}
	if err := n.setRanges(at); err != nil {
		return err
	}
	return n.Home.Configure(func(c *cfg.Config) { c.P2P.PersistentPeers = strings.Join(names, ",") })
}

// setPeers configures the peers of all nodes.
func setPeers(at map[*Node]map[*Node]string) error {
	for node, peers := range at {
		if err := node.SetPeers(peers); err != nil {
			return fmt.Errorf("%s: %w", node.Name, err)
		}
	}
	return nil
}

// Snapshots is the folder of the node's snapshots.
func (n *Node) Snapshots() string { return filepath.Join(n.Home.Dir, "data", "snapshots") }
