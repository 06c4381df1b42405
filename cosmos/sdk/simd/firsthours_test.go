package simd_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/e2e/runner"
)

// TestFirstHours: a stock node whose home was joined is stopped and killed before its first block,
// because its peers are wrong. Its next start panics in CometBFT, and the same join makes the home
// startable. Then it prunes as a node that never joined does.
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
	d.set("config/app.toml", map[string]string{"minimum-gas-prices": `"0stake"`})
	wrong := quoted(strings.Repeat("ab", 20) + "@127.0.0.1:1")
	d.set("config/config.toml", map[string]string{"p2p.persistent_peers": wrong})
	from := func(peers string) []string {
		return []string{"join", "--home", d.home, "--chain-id", chainID, "--peers", peers,
			"--trust-height", strconv.Itoa(trust), "--trust-hash", trusted.hash}
	}
	address := served.ports.Address(portJoiners)
	_, err = command(t.Context(), n.iavl, from(strings.Repeat("ab", 20)+"@"+address)...)
	require.ErrorContains(t, err, "the peer has another node id")
	args := from(address)
	joined := n.must(n.iavl, args...)
	t.Log(joined)
	found := regexp.MustCompile(`\njoined at height (\d+)`).FindStringSubmatch(joined)
	require.NotNil(t, found)
	at, err := strconv.ParseInt(found[1], 10, 64)
	require.NoError(t, err)

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
	// It takes snapshots itself, and prunes nevertheless.
	d.reach(at + 1 + keepRecent + interval)
	n.until("the joiner has pruned the state of its first block", func() bool {
		err := d.stored(at + 1)
		return err != nil && strings.Contains(err.Error(), "does not exist")
	})
	head, _, err = d.state()
	require.NoError(t, err)
	require.NoError(t, d.stored(head))
	return d
}
