package simd_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFirstHours: a stock node whose home was joined is stopped and killed before its first block,
// because its peers are wrong. Its next start panics in CometBFT, and the same join makes the home
// startable.
func TestFirstHours(t *testing.T) {
	if testing.Short() {
		t.Skip("a network of processes")
	}
	n := newNetwork(t)
	chain := n.alone()
	n.until("the chain serves a state", func() bool { return chain.logged("serving states to joiners") > 0 })
	trusted, err := chain.header(3)
	require.NoError(t, err)
	d := n.init("joiner")
	n.copyGenesis(d)
	d.set("config/app.toml", map[string]string{"state-sync.snapshot-interval": "0"})
	wrong := quoted(strings.Repeat("ab", 20) + "@127.0.0.1:1")
	d.set("config/config.toml", map[string]string{"p2p.persistent_peers": wrong})
	args := []string{"join", "--home", d.home, "--chain-id", chainID, "--peers", chain.ports.Address(portJoiners),
		"--trust-height", strconv.Itoa(3), "--trust-hash", trusted.hash}
	require.Contains(t, n.must(n.iavl, args...), "\njoined at height ")

	starts := func() {
		t.Helper()
		d.start()
		n.until("the joiner is ready", func() bool {
			_, _, err := d.state()
			return err == nil
		})
	}
	// panics starts a node that ends by itself.
	panics := func() {
		t.Helper()
		before := d.logged("height mismatch, stores were left in an inconsistent state")
		d.start()
		d.process.MayEnd()
		<-d.process.Done()
		require.Greater(t, d.logged("height mismatch, stores were left in an inconsistent state"), before)
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
	d.agrees()
	require.NoError(t, d.process.Stop(grace))
	_, err = command(t.Context(), n.iavl, args...)
	require.ErrorContains(t, err, "The home has blocks: start its node")
	starts()
}
