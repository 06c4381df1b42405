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
	Program string       // path on this machine of what Start runs: starlingd or byzantine
	Env     []string     // NAME=value, the settings of its program beside those in its home
	Peers   []*Node      // whom it dials
	PeerRPC string       // URL of its RPC server as other nodes reach it

	seed uint64 // of its lies
	// ranges are the storage nodes of each range, for the home of who asks them or is one; nil: not
	ranges [][]*Node
}

// Lies reports whether it is one of the Byzantine nodes.
func (n *Node) Lies() bool { return n.Lie != "" }

// Stores reports whether it is a storage node, which has no blocks and answers no clients.
func (n *Node) Stores() bool { return n.Mode == manifest.Storage }

// Args are the program's arguments, for a home that the program sees at the path given.
func (n *Node) Args(home string) []string {
	switch {
	case n.Lies():
		return []string{"--home", home, "--lie", n.Lie, "--seed", fmt.Sprint(n.seed)}
	case n.Stores():
		return []string{"storage", "start", "--home", home}
	}
	return []string{"start", "--home", home}
}

// ServeAt sets where the node listens (host:port, as its program binds them), the ports of this
// machine that lead to its RPC server and metrics, in the order in which runner.HomePorts holds
// them, and the host and RPC port that other nodes use.
func (n *Node) ServeAt(listen runner.Listen, held *ports.Ports, peerRPC string) error {
	n.PeerRPC = peerRPC
	return n.Home.Serve(listen, held)
}

// SetPeers names the peers that the node dials, each at an address of the relay, and the storage
// nodes with what they keep.
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

// Snapshots is the folder of the snapshots that the node keeps.
func (n *Node) Snapshots() string { return filepath.Join(n.Home.Dir, "data", "snapshots") }
