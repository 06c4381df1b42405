package testnet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	cfg "github.com/cometbft/cometbft/config"

	"github.com/starling-kv/starling/e2e/manifest"
	"github.com/starling-kv/starling/e2e/runner"
)

// StartLate starts the nodes with start_at, each as its manifest says, once the network is at that
// height, and waits until they follow the chain. Nodes with the same height start at the same time.
// Nodes that a step kills during their join are left to that step.
func (n *Network) StartLate(ctx context.Context) error {
	ctx, stop := n.under(ctx)
	defer stop()
	groups := map[int64][]*Node{}
	var heights []int64
	for _, node := range n.nodes { // ordered by StartAt
		if node.StartAt == 0 || n.isStarted(node) || n.startedByStep(node) {
			continue
		}
		if groups[node.StartAt] == nil {
			heights = append(heights, node.StartAt)
		}
		groups[node.StartAt] = append(groups[node.StartAt], node)
	}
	for _, height := range heights {
		nodes := groups[height]
		if err := n.reach(ctx, height); err != nil {
			return err
		}
		began := time.Now()
		if err := n.trust(ctx, nodes); err != nil {
			return err
		}
		for _, node := range nodes {
			if err := n.start(ctx, node); err != nil {
				return err
			}
		}
		if err := n.follow(ctx, nodes); err != nil {
			return err
		}
		n.log("%s: followed the network after %.1f s", names(nodes), time.Since(began).Seconds())
	}
	return nil
}

func names(nodes []*Node) string {
	list := make([]string, 0, len(nodes))
	for _, node := range nodes {
		list = append(list, fmt.Sprintf("%s (%s)", node.Name, node.Join))
	}
	return strings.Join(list, ", ")
}

// startedByStep reports whether a step starts the node.
func (n *Network) startedByStep(node *Node) bool {
	return slices.ContainsFunc(n.Manifest.Steps, func(s manifest.Step) bool {
		return s.Do == manifest.KillMidSync && slices.Contains(s.Nodes, node.Name)
	})
}

// trust configures nodes that join from a snapshot with the header of the newest snapshot, once the
// two blocks after it exist, which a node needs to begin.
func (n *Network) trust(ctx context.Context, nodes []*Node) error {
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(node *Node) bool { return node.Join == manifest.Blocks })
	if len(nodes) == 0 {
		return nil
	}
	const beyond = 2
	interval := n.Manifest.SnapshotInterval
	if err := n.reach(ctx, interval+beyond); err != nil {
		return err
	}
	best, _ := n.Best(ctx)
	var trusted runner.Header
	err := errors.New("no honest node of genesis runs")
	for _, node := range n.Running() {
		if node.StartAt > 0 { // it may not have that block
			continue
		}
		if trusted, err = node.Home.Header(ctx, (best-beyond)/interval*interval); err == nil {
			break
		}
	}
	if err != nil {
		return err
	}
	for _, node := range nodes {
		if err := n.Trust(node, trusted); err != nil {
			return fmt.Errorf("%s: %w", node.Name, err)
		}
	}
	return nil
}

// Trust configures a node that has not been started with a header to join from.
func (n *Network) Trust(node *Node, trusted runner.Header) error {
	var servers []string // CometBFT requires two, even if both are the same
	for _, node := range n.Running() {
		servers = append(servers, node.PeerRPC)
	}
	servers = append(servers, servers...)[:2]
	return node.Home.Configure(func(c *cfg.Config) {
		c.StateSync.Enable = true
		c.StateSync.TrustHeight = trusted.Height
		c.StateSync.TrustHash = fmt.Sprintf("%X", trusted.Hash)
		if node.Join == manifest.InBand {
			c.StateSync.RPCServers = servers
		}
	})
}

// Launch starts a node that Start has left out, without waiting for it.
func (n *Network) Launch(ctx context.Context, node *Node) error { return n.start(ctx, node) }

// Forget stops a node and removes its data, except its signing state.
func (n *Network) Forget(ctx context.Context, node *Node) error {
	n.mark(node, false)
	if err := n.options.Provider.Stop(ctx, node, stopGrace); err != nil {
		return err
	}
	return node.forget()
}

const (
	// syncRate limits the bytes a second from each peer to a node that is to be killed during
	// its join, so that even a small state takes some time.
	syncRate = 16 << 10
	// syncTries is the maximum number of joins, each at half the rate of the one before, if a join
	// ends before the node could be killed.
	syncTries = 4
)

// killMidSync starts a node, kills it as soon as its log says that it restores a snapshot, and
// starts it again.
func (n *Network) killMidSync(ctx context.Context, node *Node) error {
	if err := n.reach(ctx, node.StartAt); err != nil {
		return err
	}
	if err := n.trust(ctx, []*Node{node}); err != nil {
		return err
	}
	if err := n.startAndKill(ctx, node); err != nil {
		return err
	}
	if err := n.start(ctx, node); err != nil {
		return err
	}
	return n.follow(ctx, []*Node{node})
}

func (n *Network) startAndKill(ctx context.Context, node *Node) (err error) {
	own := touching(n.links, []string{node.Name})
	slow := n.usual()
	slow.Bandwidth = syncRate
	defer func() { err = errors.Join(err, n.treat(ctx, own, n.usual())) }()
	for range syncTries {
		if err := n.treat(ctx, own, slow); err != nil {
			return err
		}
		var logged int64
		if info, err := os.Stat(node.Home.Log()); err == nil {
			logged = info.Size()
		}
		said := func(message string) bool {
			lines, err := runner.LoggedFrom(node.Home.Log(), logged, message)
			return err == nil && len(lines) > 0
		}
		if err := n.options.Provider.Start(ctx, node); err != nil {
			return err
		}
		err := n.await(ctx, node, func() string { return "to restore a snapshot" }, func(context.Context) bool {
			return said(runner.LogRestoring)
		})
		if err != nil {
			return err
		}
		if err := n.options.Provider.Kill(ctx, node); err != nil {
			return err
		}
		if !said(runner.LogRestored) {
			return nil
		}
		n.log("%s had its state before it could be killed: removing its data to join again", node.Name)
		if err := node.forget(); err != nil {
			return err
		}
		slow.Bandwidth /= 2
	}
	return fmt.Errorf("%s always has its state before it can be killed: give the network more initial_keys", node.Name)
}

// forget removes the data of a stopped node, except its signing state.
func (n *Node) forget() error {
	entries, err := os.ReadDir(filepath.Join(n.Home.Dir, "data"))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		path := filepath.Join(n.Home.Dir, "data", entry.Name())
		if path == n.Home.SigningState() {
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}
