package testnet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cometbft/cometbft/crypto/ed25519"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/e2e/manifest"
	"github.com/starling-kv/starling/e2e/relay/link"
	"github.com/starling-kv/starling/tx"
)

// Perturb executes a step on all its nodes at the same time. It returns when they follow the chain
// again; Byzantine nodes need not.
func (n *Network) Perturb(ctx context.Context, s manifest.Step) error {
	ctx, stop := n.under(ctx)
	defer stop()
	began := time.Now()
	nodes, err := n.named(s)
	if err == nil {
		err = n.perturb(ctx, s, nodes)
	}
	if err != nil {
		return fmt.Errorf("step %v: %w", s, err)
	}
	best, _ := n.Best(ctx)
	n.log("%v: done in %.1f s, at height %d", s, time.Since(began).Seconds(), best)
	return nil
}

// named returns the nodes of a step. All must run, except those that the step starts.
func (n *Network) named(s manifest.Step) (nodes []*Node, err error) {
	starts := s.Do == manifest.KillMidSync
	for _, name := range s.Nodes {
		node := n.Node(name)
		switch {
		case node == nil:
			return nil, fmt.Errorf("there is no node %q", name)
		case starts && n.isStarted(node):
			return nil, fmt.Errorf("%s runs already: it cannot be killed during its join", name)
		case !starts && !n.isStarted(node):
			return nil, fmt.Errorf("%s does not run yet: it starts at height %d", name, node.StartAt)
		}
		nodes = append(nodes, node)
	}
	return nodes, nil
}

func (n *Network) perturb(ctx context.Context, s manifest.Step, nodes []*Node) error {
	p := n.options.Provider
	worse := n.usual()
	switch s.Do {
	case manifest.Wait:
		return pause(ctx, time.Duration(s.For))
	case manifest.UpgradeApp:
		return n.upgradeApp(ctx)
	case manifest.SplitRange, manifest.MoveRange:
		return n.changeRange(ctx, s.Do, nodes)
	case manifest.Kill:
		return n.whileDown(ctx, nodes, p.Kill, func(*Node) error { return pause(ctx, time.Duration(s.For)) })
	case manifest.Restart:
		return n.whileDown(ctx, nodes, n.stop, func(*Node) error { return nil })
	case manifest.Upgrade:
		return n.whileDown(ctx, nodes, n.stop, func(node *Node) error {
			if !node.Lies() {
				node.Program = n.options.Programs.Starlingd
			}
			return nil
		})
	case manifest.LoseDisk:
		return n.whileDown(ctx, nodes, p.Kill, (*Node).forget)
	case manifest.DeleteSnapshot:
		return n.deleteSnapshots(ctx, nodes)
	case manifest.FullDisk:
		return n.fillDisks(ctx, nodes)
	case manifest.KillMidSync:
		return each(nodes, func(node *Node) error { return n.killMidSync(ctx, node) })
	case manifest.Pause:
		return n.forAWhile(ctx, nodes, s, p.Pause, p.Resume)
	case manifest.Disconnect:
		return n.forAWhile(ctx, nodes, s, p.Disconnect, p.Connect)
	case manifest.Partition:
		worse.Cut = true
		if err := n.treatFor(ctx, crossing(n.links, s.Nodes), worse, s); err != nil {
			return err
		}
		return n.follow(ctx, n.Running()) // the part without a majority has to catch up
	case manifest.Bandwidth:
		worse.Bandwidth = s.Rate
	case manifest.Delay:
		worse.Delay += time.Duration(s.Delay)
	default:
		return fmt.Errorf("%q is not a step", s.Do)
	}
	if err := n.treatFor(ctx, touching(n.links, s.Nodes), worse, s); err != nil {
		return err
	}
	return n.follow(ctx, nodes)
}

// adminOf returns the account that upgrades the network of a manifest.
func adminOf(m *manifest.Manifest) ed25519.PrivKey {
	return ed25519.GenPrivKeyFromSecret(fmt.Appendf(nil, "admin of %s, seed %d", m.Name, m.Seed))
}

// upgradeApp schedules the newest app version, waits until it has begun, and lets everybody deploy
// and call programs.
func (n *Network) upgradeApp(ctx context.Context) error {
	var nodes []string
	for _, node := range n.Running() {
		nodes = append(nodes, node.Home.RPC())
	}
	c, err := client.Dial(ctx, nodes, client.WithChainID(n.ChainID()), client.WithKey(adminOf(n.Manifest)))
	if err != nil {
		return err
	}
	const notice = 16 // blocks, in one of which the transaction must be
	best, _ := n.Best(ctx)
	last := best + notice
	if _, err := c.ScheduleUpgrade(ctx, tx.NewestAppVersion, uint64(last), ""); err != nil {
		return err
	}
	if err := n.reach(ctx, last+1); err != nil {
		return err
	}
	if _, err := c.Submit(ctx, tx.NewGrant(nil, programs, 0)); err != nil {
		return err
	}
	return n.follow(ctx, n.Running()) // a node without the grant would refuse calls
}

// programs is the prefix of the records of all programs.
var programs = []byte{tx.Reserved, 'x'}

// stop ends a node cleanly.
func (n *Network) stop(ctx context.Context, node *Node) error {
	return n.options.Provider.Stop(ctx, node, stopGrace)
}

// whileDown stops nodes, calls do, starts the nodes, and waits until they follow the network again.
func (n *Network) whileDown(ctx context.Context, nodes []*Node, down func(context.Context, *Node) error, do func(*Node) error) error {
	err := each(nodes, func(node *Node) error {
		n.mark(node, false)
		if err := down(ctx, node); err != nil {
			return err
		}
		if err := do(node); err != nil {
			return fmt.Errorf("%s: %w", node.Name, err)
		}
		return n.start(ctx, node)
	})
	if err != nil {
		return err
	}
	return n.follow(ctx, nodes)
}

// forAWhile calls do for each node, and undo after the step's duration.
func (n *Network) forAWhile(ctx context.Context, nodes []*Node, s manifest.Step, do, undo func(context.Context, *Node) error) error {
	if err := each(nodes, func(node *Node) error { return do(ctx, node) }); err != nil {
		return err
	}
	if err := pause(ctx, time.Duration(s.For)); err != nil {
		return err
	}
	if err := each(nodes, func(node *Node) error { return undo(ctx, node) }); err != nil {
		return err
	}
	return n.follow(ctx, nodes)
}

// treatFor treats links differently for the step's duration.
func (n *Network) treatFor(ctx context.Context, pairs [][2]string, t link.Treatment, s manifest.Step) error {
	if err := n.treat(ctx, pairs, t); err != nil {
		return err
	}
	if err := pause(ctx, time.Duration(s.For)); err != nil {
		return err
	}
	return n.treat(ctx, pairs, n.usual())
}

// deleteSnapshots removes nodes' snapshots while they are stopped. The nodes must start without
// them, and soon store new ones.
func (n *Network) deleteSnapshots(ctx context.Context, nodes []*Node) error {
	err := n.whileDown(ctx, nodes, n.stop, func(node *Node) error {
		there, err := node.stored()
		if err != nil {
			return err
		}
		n.log("%s loses %d snapshots", node.Name, len(there))
		for _, path := range there {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return each(nodes, func(node *Node) error {
		if node.Lies() {
			return nil
		}
		return n.await(ctx, node, func() string { return "to store a snapshot" }, func(context.Context) bool {
			there, err := node.stored()
			return err == nil && len(there) > 0
		})
	})
}

// stored lists the snapshots in the node's folder.
func (n *Node) stored() ([]string, error) {
	return filepath.Glob(filepath.Join(n.Snapshots(), "[0-9]*"))
}
