package testnet_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/e2e/manifest"
	"github.com/starling-kv/starling/e2e/relay/link"
	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/e2e/testnet"
)

// dockerNetwork is a network of containers that does not use Setup.
type dockerNetwork struct {
	*testnet.Docker
	dir   string
	nodes []*testnet.Node
	ctx   context.Context
}

// newDockerNetwork prepares a network of validators, and skips the test if there is no Docker.
func newDockerNetwork(t *testing.T, validators int) *dockerNetwork {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 5*time.Minute, errors.New("not done within five minutes"))
	t.Cleanup(cancel)
	if _, err := exec.LookPath("docker"); err != nil {
		t.Skip("NOT RUN: networks of containers (no Docker here)")
	}
	n := &dockerNetwork{dir: t.TempDir()}
	programs := map[string]string{}
	var err error
	for _, pkg := range []string{"./cmd/starlingd", "./e2e/relay"} {
		programs[pkg], err = runner.Program(ctx, pkg)
		require.NoError(t, err)
	}
	n.Docker, err = testnet.NewDocker(ctx, programs["./e2e/relay"])
	if err != nil {
		t.Skipf("NOT RUN: networks of containers: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, node := range n.nodes {
				t.Logf("%s:\n%s", node.Name, strings.Join(runner.Tail(node.Home.Log(), 20), "\n"))
			}
		}
		begin := time.Now()
		require.NoError(t, n.Close())
		t.Logf("closed in %v", time.Since(begin))
		left, err := exec.Command("docker", "ps", "--all", "--quiet", "--filter", fmt.Sprintf("label=io.starling-kv.e2e.owner=%d", os.Getpid())).Output()
		require.NoError(t, err)
		require.Empty(t, string(left), "containers outlive the network")
	})
	var homes []*runner.Home
	for i := range validators {
		name := fmt.Sprintf("validator-%d", i)
		dir := filepath.Join(n.dir, name)
		home, err := runner.InitHome(ctx, name, dir, programs["./cmd/starlingd"], "init", name, "--chain-id", "docker", "--home", dir)
		require.NoError(t, err)
		homes = append(homes, home)
		n.nodes = append(n.nodes, &testnet.Node{
			Name: name, Node: manifest.Node{Mode: manifest.Validator}, Home: home, Program: programs["./cmd/starlingd"],
			Env: []string{"STARLINGD_SNAPSHOTS_KEEP_RECENT=3"}, Peers: append([]*testnet.Node(nil), n.nodes...),
		})
	}
	_, err = runner.Genesis(homes, nil, "docker", map[string]any{
		"chunk_bytes": 1 << 14, "snapshot_interval": 10, "open": true, "admins": []string{}, "grants": []any{},
	})
	require.NoError(t, err)
	for _, home := range homes {
		require.NoError(t, home.Configure(func(c *cfg.Config) {
			c.Consensus.TimeoutCommit, c.Consensus.CreateEmptyBlocksInterval = 200*time.Millisecond, 0
		}))
	}
	begin := time.Now()
	require.NoError(t, n.Prepare(ctx, n.dir, n.nodes))
	t.Logf("prepared in %v", time.Since(begin))
	// All waits end when a node dies.
	joined, cancelJoined := context.WithCancelCause(ctx)
	context.AfterFunc(n.Context(), func() { cancelJoined(context.Cause(n.Context())) })
	t.Cleanup(func() { cancelJoined(nil) })
	n.ctx = joined
	return n
}

// advance waits until a node has executed two more blocks.
func (n *dockerNetwork) advance(t *testing.T, node *testnet.Node) {
	t.Helper()
	var from int64 = -1
	require.NoError(t, runner.Poll(n.ctx, node.Name+" to make blocks", func() bool {
		app, err := node.Home.AppInfo(n.ctx)
		if err != nil {
			return false
		}
		if from < 0 {
			from = app.Height
		}
		return app.Height >= from+2
	}))
}

// Every method of the provider on one of four validators: the others continue, and the node follows
// again.
func TestDocker(t *testing.T) {
	n := newDockerNetwork(t, 4)
	begin := time.Now()
	for _, node := range n.nodes {
		require.NoError(t, n.Start(n.ctx, node))
	}
	for _, node := range n.nodes {
		n.advance(t, node)
	}
	t.Logf("blocks after %v", time.Since(begin))
	victim, other := n.nodes[1], n.nodes[3]

	uid := fmt.Sprint(os.Geteuid())
	if uid == "0" {
		uid = "65532"
	}
	out, err := exec.Command("docker", "top", dockerName(t, victim), "-o", "pid,uid").Output()
	require.NoError(t, err)
	fields := strings.Fields(string(out))
	require.Equal(t, uid, fields[len(fields)-1], "it runs as the owner of its home")

	do := func(what string, back func() error, step func() error) {
		begin := time.Now()
		require.NoError(t, step(), what)
		n.advance(t, other)
		if back != nil {
			require.NoError(t, back(), what)
		}
		n.advance(t, victim)
		t.Logf("%s: %v", what, time.Since(begin))
	}
	again := func() error { return n.Start(n.ctx, victim) }
	do("kill", again, func() error { return n.Kill(n.ctx, victim) })
	do("stop", again, func() error { return n.Stop(n.ctx, victim, 20*time.Second) })
	require.Contains(t, strings.Join(runner.Tail(victim.Home.Log(), 1000), "\n"), "Starling node stopped", "cleanly")
	do("pause", func() error { return n.Resume(n.ctx, victim) }, func() error { return n.Pause(n.ctx, victim) })
	do("disconnect", func() error { return n.Connect(n.ctx, victim) }, func() error { return n.Disconnect(n.ctx, victim) })
	links := func(treatment link.Treatment) error {
		var settings []link.Setting
		for _, node := range n.nodes {
			if node != victim {
				settings = append(settings, link.Setting{From: victim.Name, To: node.Name, Treatment: treatment},
					link.Setting{From: node.Name, To: victim.Name, Treatment: treatment})
			}
		}
		return n.Links().Set(n.ctx, settings...)
	}
	do("cut", func() error { return links(link.Treatment{}) }, func() error { return links(link.Treatment{Cut: true}) })
	do("another program", again, func() error {
		// the same program with bytes appended, which makes another image
		program := filepath.Join(t.TempDir(), "starlingd")
		content, err := os.ReadFile(victim.Program)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(program, append(content, "upgraded"...), 0o755))
		victim.Program = program
		return n.Stop(n.ctx, victim, 20*time.Second)
	})
	image := func(node *testnet.Node) string {
		out, err := exec.Command("docker", "inspect", "--format", "{{.Config.Image}}", dockerName(t, node)).Output()
		require.NoError(t, err)
		return string(out)
	}
	require.NotEqual(t, image(other), image(victim), "the container still has the old image")

	// A container may end after MayEnd, and its exit status is returned.
	n.MayEnd(victim)
	require.NoError(t, exec.Command("docker", "kill", "--signal", "TERM", dockerName(t, victim)).Run())
	ended, err := n.Ended(n.ctx, victim)
	require.NoError(t, err)
	require.Zero(t, ended)
	require.NoError(t, n.Start(n.ctx, victim))

	// A container that ends unexpectedly ends all waits, with the end of its log.
	require.NoError(t, n.Context().Err())
	require.NoError(t, exec.Command("docker", "kill", dockerName(t, victim)).Run())
	<-n.Context().Done()
	var died *runner.DiedError
	require.ErrorAs(t, context.Cause(n.Context()), &died)
	require.Equal(t, victim.Name, died.Name)
	require.NotEmpty(t, died.Tail)
}

// dockerName returns the name of a node's container.
func dockerName(t *testing.T, node *testnet.Node) string {
	t.Helper()
	name := fmt.Sprintf("name=^/starling-e2e-%d-[0-9]+-%s$", os.Getpid(), node.Name)
	out, err := exec.Command("docker", "ps", "--all", "--filter", name, "--format", "{{.Names}}").Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(out))
}
