package testnet

import (
	"context"
	"time"

	"github.com/starling-kv/starling/e2e/relay/link"
)

// Provider runs the nodes of one network, and the relay between them. A node's home is a folder of
// this machine whichever the provider. Methods about different nodes may be called concurrently. An
// error names the node.
type Provider interface {
	// Name is what a user types: "process" or "docker".
	Name() string
	// Context is done once a node or the relay has ended that nobody asked to: then context.Cause
	// is a *runner.DiedError, with the end of its log. A node that lies, and one that MayEnd, may
	// end at any time.
	Context() context.Context
	// Prepare is called once, with all nodes of the network made and none started: it gives each
	// node its addresses (Node.ServeAt), writes what the provider needs (the relay's configuration,
	// see planLinks; a compose file) into dir, names the nodes' peers (Node.SetPeers), and starts
	// the relay.
	Prepare(ctx context.Context, dir string, nodes []*Node) error
	// Start starts a node, the first time or again, as the program that Node.Program names.
	Start(ctx context.Context, n *Node) error
	// Stop ends a node cleanly (SIGTERM), and by SIGKILL with an error where that takes longer than
	// grace.
	Stop(ctx context.Context, n *Node, grace time.Duration) error
	// Kill ends a node at once (SIGKILL). It returns when it has ended.
	Kill(ctx context.Context, n *Node) error
	// Pause stops a node without ending it, Resume lets it continue.
	Pause(ctx context.Context, n *Node) error
	Resume(ctx context.Context, n *Node) error
	// Disconnect takes a node's network away, Connect gives it back.
	Disconnect(ctx context.Context, n *Node) error
	Connect(ctx context.Context, n *Node) error
	// MayEnd says that from now until it is started again a node may end by itself.
	MayEnd(n *Node)
	// Ended waits until such a node has ended, and returns its exit status.
	Ended(ctx context.Context, n *Node) (status int, err error)
	// Links controls the relay. It is nil before Prepare.
	Links() Links
	// Close ends everything that was started, and removes what is no file of the network's folder.
	// A second call does nothing.
	Close() error
}

// Links controls the relay, as link.Control does over its endpoint. Settings hold for connections
// that are there as for those to come. All hold, or none where there is an error.
type Links interface {
	Set(ctx context.Context, settings ...link.Setting) error
}
