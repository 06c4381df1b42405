package testnet

import (
	"context"
	"time"

	"github.com/starling-kv/starling/e2e/relay/link"
)

// Provider runs the nodes of one network, and the relay between them. A node's home is a folder of
// this machine for every provider. Methods for different nodes may be called concurrently. An error
// names the node.
type Provider interface {
	// Name is the provider's name: "process" or "docker".
	Name() string
	// Context is done once a node or the relay has ended unexpectedly: then context.Cause is a
	// *runner.DiedError, with the end of its log. A Byzantine node, and one after MayEnd, may end
	// at any time.
	Context() context.Context
	// Prepare is called once, when all nodes of the network are made and none is started. It sets
	// each node's addresses (Node.ServeAt), writes the provider's files (the relay's configuration,
	// see planLinks; a compose file) into dir, sets the nodes' peers (Node.SetPeers), and starts
	// the relay.
	Prepare(ctx context.Context, dir string, nodes []*Node) error
	// Start starts a node, for the first time or again, with the program Node.Program.
	Start(ctx context.Context, n *Node) error
	// Stop ends a node cleanly (SIGTERM). After grace it uses SIGKILL and returns an error.
	Stop(ctx context.Context, n *Node, grace time.Duration) error
	// Kill ends a node at once (SIGKILL). It returns when it has ended.
	Kill(ctx context.Context, n *Node) error
	// Pause stops a node without ending it, Resume continues it.
	Pause(ctx context.Context, n *Node) error
	Resume(ctx context.Context, n *Node) error
	// Disconnect removes a node's network, Connect restores it.
	Disconnect(ctx context.Context, n *Node) error
	Connect(ctx context.Context, n *Node) error
	// MayEnd declares that a node may end by itself until it is started again.
	MayEnd(n *Node)
	// Ended waits until such a node has ended, and returns its exit status.
	Ended(ctx context.Context, n *Node) (status int, err error)
	// Links controls the relay. It is nil before Prepare.
	Links() Links
	// Close ends all processes, and removes resources that are not files of the network's folder. A
	// second call has no effect.
	Close() error
}

// Links controls the relay, as link.Control does over its endpoint. Settings apply to existing and
// new connections: all of them, or none if there is an error.
type Links interface {
	Set(ctx context.Context, settings ...link.Setting) error
}
