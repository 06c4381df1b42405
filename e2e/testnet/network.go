package testnet

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/e2e/manifest"
	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/internal/sleep"
)

// patience is the time limit of each wait (for a start, a join, a node to follow the network
// again), long enough for a busy machine.
const patience = 4 * time.Minute

// Programs are the paths of the programs on this machine. For containers they must be static.
type Programs struct{ Starlingd, Byzantine, Relay string }

// Options are the parameters of Setup. Only Manifest, Provider, Programs and Dir are required.
type Options struct {
	Manifest *manifest.Manifest // complete: see manifest.Manifest.Complete
	Provider Provider           // closed by Network.Close; not used by Make
	Programs Programs
	Dir      string // for all files; created if it does not exist

	ChainID string // default: "e2e-" and the manifest's name
	Open    bool   // the genesis file lets everybody write text transactions
	// AppState replaces the application's state in the genesis file.
	AppState any
	// Init returns the arguments with which a node's first program creates a home; default: those
	// of `starlingd init`.
	Init      func(name, dir string) []string
	Configure func(*cfg.Config)             // changes the configuration of every node, last
	Env       []string                      // NAME=value, for all nodes
	Loading   func(written int)             // called by Load, by one goroutine at a time
	Log       func(format string, a ...any) // called once for each event
}

// complete sets omitted fields to their defaults.
func (o *Options) complete() {
	o.ChainID = cmp.Or(o.ChainID, "e2e-"+o.Manifest.Name)
	if o.Init == nil {
		o.Init = func(name, dir string) []string { return []string{"init", name, "--chain-id", o.ChainID, "--home", dir} }
	}
	if o.AppState == nil {
		admins := []string{}
		if o.Manifest.UpgradesApp() {
			admins = append(admins, hex.EncodeToString(adminOf(o.Manifest).PubKey().Bytes()))
		}
		o.AppState = app.Genesis{
			ChunkBytes: o.Manifest.ChunkBytes, SnapshotInterval: o.Manifest.SnapshotInterval,
			Open: o.Open, Admins: admins, Grants: []app.GenesisGrant{{Grantee: app.Everyone, Prefix: Prefix}},
		}
	}
	if o.Configure == nil {
		o.Configure = func(*cfg.Config) {}
	}
	if o.Loading == nil {
		o.Loading = func(int) {}
	}
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
}

// Network is the network of a manifest. Methods that change it must be called one at a time.
type Network struct {
	Manifest *manifest.Manifest
	Genesis  *types.GenesisDoc
	Data     Dataset // written by Load
	Loaded   int64   // height of the last block of Load

	options Options
	nodes   []*Node
	links   [][2]string      // senders and receivers
	disks   map[*Node]string // mount points for nodes whose disk a step fills
	change  *rangeChange     // in progress; nil: none

	mu      sync.Mutex
	started map[*Node]bool // nodes that were started and are not stopped by a step
}

// ChainID is the name of the network's chain.
func (n *Network) ChainID() string { return n.options.ChainID }

// Context is done when a node that should run has ended: see Provider.Context.
func (n *Network) Context() context.Context { return n.options.Provider.Context() }

// Nodes returns all nodes, in the order in which they start.
func (n *Network) Nodes() []*Node { return n.nodes }

// Node returns the node with a name, or nil if there is none.
func (n *Network) Node(name string) *Node {
	i := slices.IndexFunc(n.nodes, func(node *Node) bool { return node.Name == name })
	if i < 0 {
		return nil
	}
	return n.nodes[i]
}

// Running returns the honest nodes that were started and follow the chain, in the order in which
// they start. A node that a step has stopped is not included.
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

// start starts a node, for the first time or again.
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

// Best returns the honest node with the greatest height, and that height; nil if no node answers.
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

// Follow waits until all running honest nodes have a block that the network does not have yet, and
// are not catching up. A change of the ranges ends before.
func (n *Network) Follow(ctx context.Context) error {
	ctx, stop := n.under(ctx)
	defer stop()
	if err := n.endChange(ctx); err != nil {
		return err
	}
	return n.follow(ctx, n.Running())
}

// follow is Follow for some nodes, and ignores Byzantine ones. If a storage node is among them it
// also waits for all other nodes, which need it.
func (n *Network) follow(ctx context.Context, nodes []*Node) error {
	storage := slices.DeleteFunc(slices.Clone(nodes), func(node *Node) bool { return !node.Stores() })
	if len(storage) > 0 {
		nodes = append(n.Running(), storage...)
	}
	best, _ := n.Best(ctx)
	return each(nodes, func(node *Node) error {
		if node.Lies() {
			return nil
		}
		if node.Stores() {
			var at []int64
			return n.await(ctx, node, func() string { return fmt.Sprintf("to have its ranges up to height %d on disk (now %v)", best, at) },
				func(ctx context.Context) bool {
					values, err := node.Home.ScrapeLabelled(ctx)
					at = nil
					there := 0 // without ranges that it had before a change
					for name, value := range values {
						if strings.HasPrefix(name, "starling_storagenode_durable_height ") {
							if at = append(at, int64(value)); int64(value) >= best {
								there++
							}
						}
					}
					return err == nil && there >= n.assigned(node)
				})
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

// await polls until done returns true for a node, or for the network if node is nil, for at most
// patience.
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

// pause waits for d: it is the duration of a step.
func pause(ctx context.Context, d time.Duration) error {
	if sleep.For(ctx, d) != nil {
		return context.Cause(ctx)
	}
	return nil
}

func (n *Network) log(format string, a ...any) { n.options.Log(format, a...) }

// Close ends all processes. A second call has no effect.
func (n *Network) Close() error {
	if n.change != nil {
		n.change.stop()
		<-n.change.ended
	}
	return errors.Join(n.options.Provider.Close(), n.unmountDisks())
}
