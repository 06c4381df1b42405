package e2e_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/e2e/runner"
)

// storageMap is the part of a storage nodes file that the test needs.
type storageMap struct {
	Version int `toml:"version"`
	Ranges  []struct {
		First string   `toml:"first"`
		Nodes []string `toml:"nodes"` // ID@HOST:PORT
	} `toml:"range"`
}

const changeLimit = 3 * time.Minute

// TestRangesChange changes the ranges of a running network: ranges are divided, moved, replicated,
// dropped and merged, while clients write, and nodes are killed in the middle of it. Nothing that
// was acknowledged is lost, and all validators agree.
func TestRangesChange(t *testing.T) {
	s := settingsOfTorture(t)
	n := newShardedTorture(t, s)
	loading, stop := context.WithCancel(n.ctx)
	t.Cleanup(func() { stop(); n.load.wg.Wait() })
	for i, h := range n.validators {
		n.load.start(loading, tortureChain, i, h, s.seed)
	}
	n.advance("the first blocks with transactions", 3)

	edge := torturePrefix + "1/8"
	n.change("split", edge)
	require.Len(t, n.ranges().Ranges, tortureRanges+1)
	from, to := n.replicaOf(edge), n.stranger(edge)
	n.change("move", edge, "--from", from.ID(), "--to", n.transport(to))
	require.NotContains(t, n.nodesOf(edge), from.ID())
	n.awaitGone(from, edge)
	n.change("replicate", edge, "--to", n.transport(from))
	n.change("drop", edge, "--from", to.ID())
	require.Contains(t, n.nodesOf(edge), from.ID())

	// All nodes are killed while a range is divided: the change goes on where it was.
	interrupted := n.startChange("split", torturePrefix+"2/8")
	pause(n.ctx, time.Duration(n.random.IntN(3000))*time.Millisecond)
	everybody := slices.Concat(n.storage, n.validators)
	for _, h := range everybody {
		n.running[h].Kill()
	}
	for _, h := range everybody {
		n.start(h)
	}
	n.advance("blocks after a kill of everybody", 3)
	n.endChange(interrupted)
	require.Len(t, n.ranges().Ranges, tortureRanges+2)

	// The operator ends the command, and goes on later.
	out, err := n.command("merge", edge, "--no-wait").CombinedOutput()
	require.NoError(t, err, string(out))
	n.change("continue")
	n.change("merge", torturePrefix+"2/8")
	require.Len(t, n.ranges().Ranges, tortureRanges)
	stop()
	n.load.wg.Wait()
	n.compare()
}

// ranges returns the map in the operator's home, which is that of the first storage node.
func (n *shardedTorture) ranges() (m storageMap) {
	n.Helper()
	text, err := os.ReadFile(n.mapFile(n.storage[0]))
	require.NoError(n, err)
	require.NoError(n, toml.Unmarshal(text, &m))
	return m
}

func (n *shardedTorture) mapFile(h *runner.Home) string {
	return filepath.Join(h.Dir, "config", "storage_nodes.toml")
}

// sign signs the first map, and copies it into all homes.
func (n *shardedTorture) sign(homes []*runner.Home) {
	n.Helper()
	out, err := n.command("sign").CombinedOutput()
	require.NoError(n, err, string(out))
	text, err := os.ReadFile(n.mapFile(n.storage[0]))
	require.NoError(n, err)
	for _, h := range homes {
		require.NoError(n, os.WriteFile(n.mapFile(h), text, 0o600))
	}
}

// command returns a command that changes the map.
func (n *shardedTorture) command(args ...string) *exec.Cmd {
	return exec.CommandContext(n.ctx, starlingd, slices.Concat([]string{"storage", "ranges"}, args, []string{"--home", n.storage[0].Dir})...)
}

type change struct {
	*exec.Cmd
	what  string
	began time.Time
	out   strings.Builder
}

func (n *shardedTorture) startChange(args ...string) *change {
	n.Helper()
	c := &change{Cmd: n.command(append(args, "--timeout", changeLimit.String())...), what: strings.Join(args, " "), began: time.Now()}
	c.Stdout, c.Stderr = &c.out, &c.out
	require.NoError(n, c.Start())
	return c
}

func (n *shardedTorture) endChange(c *change) {
	n.Helper()
	err := c.Wait()
	if err != nil {
		for _, h := range slices.Concat(n.storage, n.validators) {
			n.Logf("the log of %s ends with\n  %s", h.Name, strings.Join(runner.Tail(h.Log(), 12), "\n  "))
		}
	}
	require.NoError(n, err, "%s: %s", c.what, c.out.String())
	at, err := n.validators[0].AppInfo(n.ctx)
	require.NoError(n, err)
	n.Logf("%s took %.1f s, to block %d", c.what, time.Since(c.began).Seconds(), at.Height)
}

// change runs a command to its end.
func (n *shardedTorture) change(args ...string) {
	n.Helper()
	n.endChange(n.startChange(args...))
}

// nodesOf returns the IDs of the nodes of the range that begins with a key.
func (n *shardedTorture) nodesOf(first string) (ids []string) {
	n.Helper()
	for _, r := range n.ranges().Ranges {
		if r.First == first {
			for _, node := range r.Nodes {
				id, _, _ := strings.Cut(node, "@")
				ids = append(ids, id)
			}
		}
	}
	require.NotEmpty(n, ids, first)
	return ids
}

// replicaOf returns a node that has the range that begins with a key, and stranger one that does
// not.
func (n *shardedTorture) replicaOf(first string) *runner.Home { return n.nodeWith(first, true) }

func (n *shardedTorture) stranger(first string) *runner.Home { return n.nodeWith(first, false) }

func (n *shardedTorture) nodeWith(first string, has bool) *runner.Home {
	n.Helper()
	ids := n.nodesOf(first)
	var all []*runner.Home
	for _, h := range n.storage {
		if slices.Contains(ids, h.ID()) == has {
			all = append(all, h)
		}
	}
	return all[n.random.IntN(len(all))]
}

func (n *shardedTorture) transport(h *runner.Home) string {
	n.Helper()
	name, err := h.Transport()
	require.NoError(n, err)
	return name
}

// awaitGone waits until a node has deleted the range that begins with a key.
func (n *shardedTorture) awaitGone(h *runner.Home, first string) {
	n.Helper()
	n.await(fmt.Sprintf("the end of the range from %s at %s", first, h.Name), func() bool {
		left, err := filepath.Glob(filepath.Join(h.Dir, "data", "ranges", fmt.Sprintf("from-%x-*", first)))
		require.NoError(n, err)
		return len(left) == 0
	})
}
