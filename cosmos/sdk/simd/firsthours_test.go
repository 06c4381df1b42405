package simd_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/e2e/runner"
)

// TestFirstHours: a stock node whose home was joined is stopped and killed before its first block,
// because its peers are wrong. Its next start panics in CometBFT, and the same join makes the home
// startable.
func TestFirstHours(t *testing.T) {
	if testing.Short() {
		t.Skip("a network of processes")
	}
	n := newNetwork(t)
	firstHours(t, n.alone())
}

// firstHours joins a chain of one running node from a copy of its home, which was stopped, and
// returns the joined node, which runs.
func firstHours(t *testing.T, chain *node) *node {
	t.Helper()
	const trust = 3
	n := chain.n
	chain.reach(interval)
	require.NoError(t, chain.process.Stop(grace))
	served := n.at("served", filepath.Join(n.dir, "served"))
	require.NoError(t, os.CopyFS(served.home, os.DirFS(chain.home)))
	chain.start()
	served.ports.Release()
	_, err := n.processes.Start(runner.Spec{Name: served.name, Path: n.iavl, Log: served.log(),
		Args: []string{"serve", "--home", served.home, "--laddr", served.ports.Address(portJoiners)}})
	require.NoError(t, err)
	n.until("the copy is served", func() bool { return served.logged("serving chain "+chainID) > 0 })
	chain.reach(trust)
	trusted, err := chain.header(trust)
	require.NoError(t, err)

	d := n.init("joiner")
	n.copyGenesis(d)
	// With snapshots, the SDK prunes nothing after a join.
	d.set("config/app.toml", map[string]string{"minimum-gas-prices": `"0stake"`, "state-sync.snapshot-interval": "0"})
	wrong := quoted(strings.Repeat("ab", 20) + "@127.0.0.1:1")
	d.set("config/config.toml", map[string]string{"p2p.persistent_peers": wrong})
	args := []string{"join", "--home", d.home, "--chain-id", chainID, "--peers", served.ports.Address(portJoiners),
		"--trust-height", strconv.Itoa(trust), "--trust-hash", trusted.hash}
	joined := n.must(n.iavl, args...)
	require.Contains(t, joined, "\njoined at height ")
	t.Log(joined)

	starts := func() {
		t.Helper()
		d.start()
		n.until("the joiner is ready", func() bool {
			_, _, err := d.state()
			return err == nil
		})
	}
	const mismatch = "height mismatch, stores were left in an inconsistent state"
	// panics starts a node that ends by itself.
	panics := func() {
		t.Helper()
		before := d.logged(mismatch)
		d.start()
		d.process.MayEnd()
		<-d.process.Done()
		require.Greater(t, d.logged(mismatch), before)
	}
	joins := func() {
		t.Helper()
		require.Contains(t, n.must(n.iavl, args...), "already joined at height ")
	}
	starts()
	require.NoError(t, d.process.Stop(grace))
	panics()
	joins()
	starts()
	d.process.Kill()
	<-d.process.Done()
	panics()
	for _, name := range []string{"state.db", "blockstore.db"} {
		require.NoError(t, os.RemoveAll(filepath.Join(d.home, "data", name)))
	}
	joins()
	joins()
	d.set("config/config.toml", map[string]string{"p2p.persistent_peers": quoted(chain.peer())})
	starts()
	head, _, err := chain.state()
	require.NoError(t, err)
	d.reach(head + 2)
	t.Logf("at height %d, the joined node has the chain's app hash", d.agrees())
	require.NoError(t, d.process.Stop(grace))
	_, err = command(t.Context(), n.iavl, args...)
	require.ErrorContains(t, err, "the block store has blocks: start the node of this home")
	starts()
	return d
}
