package testnet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/e2e/manifest"
	"github.com/starling-kv/starling/e2e/runner"
)

// patience is the time limit of each wait (for a start, a join, a node to be with the network
// again), on a machine that has much else to do.
const patience = 4 * time.Minute

// Programs are the paths of the programs on this machine. For containers they are static.
type Programs struct{ Starlingd, Byzantine, Relay string }

// Options is what Setup makes a network of.
type Options struct {
	Manifest *manifest.Manifest
	Provider Provider // closed by Network.Close
	Programs Programs
	// for everything that is written; made if it is not there
	Dir string
	Log func(format string, a ...any) // a line for each thing that happens; nil: none
}

// Network is the network of a manifest. Its methods that change it are called one at a time.
type Network struct {
	Manifest *manifest.Manifest
	Genesis  *types.GenesisDoc
	Data     Dataset // what Load wrote

	options Options
	nodes   []*Node
	links   [][2]string      // senders and receivers
	disks   map[*Node]string // the mount points of nodes whose disk is to become full

	mu      sync.Mutex
	started map[*Node]bool // nodes that were started and have not been stopped by a step
}

// ChainID is the name of the network's chain.
func (n *Network) ChainID() string { return "e2e-" + n.Manifest.Name }

// Context is done when a node that should run has ended: see Provider.Context.
func (n *Network) Context() context.Context { return n.options.Provider.Context() }

// Nodes are all nodes, in the order in which they start.
func (n *Network) Nodes() []*Node { return n.nodes }

// Node returns the node with a name; nil: there is none.
func (n *Network) Node(name string) *Node {
	i := slices.IndexFunc(n.nodes, func(node *Node) bool { return node.Name == name })
	if i < 0 {
		return nil
	}
	return n.nodes[i]
}

// Running are the honest nodes that were started and follow the chain, in the order in which they
// start. While a step has one down it is not among them.
func (n *Network) Running() []*Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(n.nodes), func(node *Node) bool { return node.Lies() || node.Stores() || !n.started[node] })
}

// Start starts the nodes of genesis, and waits until the honest ones make blocks.
func (n *Network) Start(ctx context.Context) error {
	ctx, stop := n.under(ctx)
	defer stop()
	began := time.Now()
	for _, node := range n.nodes {
		if node.StartAt == 0 {
			if err := n.start(ctx, node); err != nil {
				return err
			}
		}
	}
	if err := n.follow(ctx, n.Running()); err != nil {
		return err
	}
	n.log("%d nodes make blocks after %.1f s", len(n.Running()), time.Since(began).Seconds())
	return nil
}

// start starts a node, once again or for the first time.
func (n *Network) start(ctx context.Context, node *Node) error {
	if err := n.options.Provider.Start(ctx, node); err != nil {
		return err
	}
	n.mark(node, true)
	return nil
}

func (n *Network) mark(node *Node, started bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.started == nil {
		n.started = map[*Node]bool{}
	}
	n.started[node] = started
}

func (n *Network) isStarted(node *Node) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.started[node]
}

// Best returns the height of the honest node that is furthest, and that node; nil: none answers.
func (n *Network) Best(ctx context.Context) (height int64, best *Node) {
	var mu sync.Mutex
	_ = each(n.Running(), func(node *Node) error {
		status, err := node.Home.Status(ctx)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if best == nil || status.Height > height {
			height, best = status.Height, node
		}
		return nil
	})
	return height, best
}

// Follow waits until all honest nodes that run have a block that the network does not have yet, and
// are not catching up.
func (n *Network) Follow(ctx context.Context) error {
	ctx, stop := n.under(ctx)
	defer stop()
	return n.follow(ctx, n.Running())
}

// follow waits likewise for some nodes, but not for those that lie. Where a storage node is among
// them it waits for all: it shows by what the others do.
func (n *Network) follow(ctx context.Context, nodes []*Node) error {
	if slices.ContainsFunc(nodes, (*Node).Stores) {
		nodes = n.Running()
	}
	best, _ := n.Best(ctx)
	return each(nodes, func(node *Node) error {
		if node.Lies() {
			return nil
		}
		var last runner.Status
		return n.await(ctx, node, func() string { return fmt.Sprintf("to follow the chain above height %d (now %+v)", best, last) },
			func(ctx context.Context) bool {
				status, err := node.Home.Status(ctx)
				if err == nil {
					last = status
				}
				return err == nil && !status.CatchingUp && status.Height > best
			})
	})
}

// reach waits until the network is at a height.
func (n *Network) reach(ctx context.Context, height int64) error {
	return n.await(ctx, nil, func() string { return fmt.Sprintf("height %d", height) }, func(ctx context.Context) bool {
		best, _ := n.Best(ctx)
		return best >= height
	})
}

// await polls until done reports true of a node, or of the network where node is nil, for patience
// at most.
func (n *Network) await(ctx context.Context, node *Node, what func() string, done func(context.Context) bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %v", patience))
	defer cancel()
	name := "the network"
	if node != nil {
		name = node.Name
	}
	err := runner.Poll(ctx, name, func() bool { return done(ctx) })
	if err == nil {
		return nil
	}
	err = fmt.Errorf("waiting for %s %s: %w", name, what(), context.Cause(ctx))
	var died *runner.DiedError
	if node == nil || errors.As(err, &died) {
		return err
	}
	return fmt.Errorf("%w; the last lines of %s:\n  %s", err, node.Home.Log(), strings.Join(runner.Tail(node.Home.Log(), 20), "\n  "))
}

// under returns a context that ends with ctx, and when a node dies.
func (n *Network) under(ctx context.Context) (context.Context, func()) {
	return under(ctx, n.Context())
}

func under(ctx, other context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx, func() {
		stop()
		cancel(context.Canceled)
	}
}

// pause lets time pass: it is what a step does.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

func (n *Network) log(format string, a ...any) { n.options.Log(format, a...) }

// Close ends everything. A second call does nothing.
func (n *Network) Close() error {
	return errors.Join(n.options.Provider.Close(), n.unmountDisks())
}
