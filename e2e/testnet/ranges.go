package testnet

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/starling-kv/starling/e2e/manifest"
)

// This file changes the ranges of a running network, as an operator does. The operator's home is a
// copy of a node's, and its connections are never disturbed. The signed map is the same for all
// nodes, so a storage node has one address in it; the relay finds out which node dials it.

// rangeChange is a change of the ranges that runs while other steps do.
type rangeChange struct {
	what  string
	began time.Time
	stop  func()
	ended chan struct{}
	err   error // set when ended is closed
}

// changesRanges reports whether ranges will change. The homes of containers have other addresses
// than this process, and the relay cannot find out which container a connection is from.
func (n *Network) changesRanges() bool {
	return n.Manifest.ChangesRanges() && n.options.Provider != nil && n.options.Provider.Name() == "process" && runtime.GOOS == "linux"
}

// assigned returns the number of ranges of a storage node in the operator's newest map.
func (n *Network) assigned(node *Node) int {
	text, err := os.ReadFile(mapFile(n.operator()))
	if err != nil { // the ranges do not change
		text, _ = os.ReadFile(mapFile(node.Home.Dir))
	}
	return max(1, strings.Count(string(text), node.Home.ID()+"@"))
}

func (n *Network) operator() string { return filepath.Join(n.options.Dir, "operator") }

func mapFile(home string) string { return filepath.Join(home, "config", "storage_nodes.toml") }

// rangesCommand returns the operator's command.
func (n *Network) rangesCommand(ctx context.Context, args ...string) *exec.Cmd {
	args = slices.Concat([]string{"storage", "ranges"}, args, []string{"--home", n.operator()})
	return exec.CommandContext(ctx, n.options.Programs.Starlingd, args...)
}

// signRanges makes the operator's home, signs the map of the ranges, and copies it into all homes
// that use it.
func (n *Network) signRanges(ctx context.Context) error {
	if !n.changesRanges() {
		return nil
	}
	// All storage nodes are peers of a sharded node, so its map has the addresses at the relay.
	first := slices.IndexFunc(n.nodes, func(node *Node) bool { return node.Sharded })
	if err := os.CopyFS(filepath.Join(n.operator(), "config"), os.DirFS(filepath.Join(n.nodes[first].Home.Dir, "config"))); err != nil {
		return err
	}
	if out, err := n.rangesCommand(ctx, "sign").CombinedOutput(); err != nil {
		return fmt.Errorf("signing the map of the ranges: %w: %s", err, out)
	}
	text, err := os.ReadFile(mapFile(n.operator()))
	if err != nil {
		return err
	}
	for _, node := range n.nodes {
		if node.ranges == nil {
			continue
		}
		if err := os.WriteFile(mapFile(node.Home.Dir), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// middleKey is the key that divides range i of count.
func middleKey(i, count int) string { return fmt.Sprintf("%sinitial/%02x", Prefix, (2*i+1)*128/count) }

// changeRange begins to change the range of the first node, once the last change has ended.
func (n *Network) changeRange(ctx context.Context, do manifest.Kind, nodes []*Node) error {
	if err := n.endChange(ctx); err != nil {
		return err
	}
	if !n.changesRanges() {
		n.log("NOT RUN: %s with the provider %s", do, n.options.Provider.Name())
		return nil
	}
	args := []string{"split", middleKey(n.Manifest.RangeOf(nodes[0].Name), n.Manifest.Shards)}
	if do == manifest.MoveRange {
		text, err := os.ReadFile(mapFile(n.operator()))
		if err != nil {
			return err
		}
		to := regexp.MustCompile(regexp.QuoteMeta(nodes[1].Home.ID()) + `@[^"]+`).FindString(string(text))
		args = []string{"move", args[1], "--from", nodes[0].Home.ID(), "--to", to}
	}
	// The steps that follow have contexts of their own.
	ctx, stop := context.WithCancel(n.Context()) //nolint:gosec // endChange and Close call stop
	c := &rangeChange{what: strings.Join(args[:2], " "), began: time.Now(), stop: stop, ended: make(chan struct{})}
	cmd := n.rangesCommand(ctx, append(args, "--timeout", patience.String())...)
	go func() {
		defer close(c.ended)
		if out, err := cmd.CombinedOutput(); err != nil {
			c.err = fmt.Errorf("storage ranges %s: %w: %s", c.what, err, out)
		}
	}()
	n.change = c
	return nil
}

// endChange waits for the change in progress.
func (n *Network) endChange(ctx context.Context) error {
	c := n.change
	if c == nil {
		return nil
	}
	select {
	case <-c.ended:
	case <-ctx.Done():
		return fmt.Errorf("waiting for storage ranges %s: %w", c.what, context.Cause(ctx))
	}
	c.stop()
	n.change = nil
	if c.err == nil {
		n.log("storage ranges %s: done %.1f s after it began", c.what, time.Since(c.began).Seconds())
	}
	return c.err
}
