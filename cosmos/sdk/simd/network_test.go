package simd_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/e2e/runner"
)

// TestNetwork: four validators, two of which lie to joiners, while coins are sent. A stock node
// joins by starling-iavl, a wrapped one in-band by verified chunks alone, and a stock one by the
// SDK's own format. All follow the chain with its app hashes, also after pruning and a restart.
func TestNetwork(t *testing.T) {
	if testing.Short() {
		t.Skip("a network of processes")
	}
	n := newNetwork(t)
	n.validators()
	honest, liars := n.nodes[:2], n.nodes[2:]
	n.nodes[0].reach(1)
	sent := n.send()

	// A header that joiners trust, and a state that they can have.
	for _, d := range n.nodes {
		n.until(d.name+" serves a state", func() bool { return d.logged("serving states to joiners") > 0 })
	}
	trusted, err := n.nodes[0].header(interval)
	require.NoError(t, err)
	rpc := []string{"http://" + honest[0].ports.Address(portRPC), "http://" + honest[1].ports.Address(portRPC)}
	newJoiner := func(name string, settings map[string]string) *node {
		d := n.init(name)
		n.copyGenesis(d)
		var peers []string
		for _, v := range n.nodes {
			peers = append(peers, v.peer())
		}
		values := map[string]string{"p2p.persistent_peers": quoted(strings.Join(peers, ",")), "statesync.rpc_servers": quoted(strings.Join(rpc, ",")),
			"statesync.trust_height": strconv.Itoa(interval), "statesync.trust_hash": quoted(trusted.hash)}
		for k, v := range settings {
			values[k] = v
		}
		d.set("config/config.toml", values)
		// With snapshots of its own, a node that has joined prunes nothing: the SDK waits for those
		// of the heights that it never executed.
		d.set("config/app.toml", map[string]string{"state-sync.snapshot-interval": "0"})
		return d
	}

	inBand := newJoiner("in-band", map[string]string{"statesync.enable": "true"})
	inBand.args = append(inBand.args, "--serve")
	inBand.runs(refuseSDK)
	inBand.start()
	sdkOwn := newJoiner("format3", map[string]string{"statesync.enable": "true"})
	sdkOwn.start()

	fast := newJoiner("fast", nil)
	join := func(peers ...*node) []string {
		var addresses []string
		for _, v := range peers {
			addresses = append(addresses, v.ports.Address(portJoiners))
		}
		return []string{"join", "--home", fast.home, "--chain-id", chainID, "--peers", strings.Join(addresses, ","),
			"--trust-height", strconv.Itoa(interval), "--trust-hash", trusted.hash}
	}
	// Whom there is nobody else to ask is asked. A join that only liars serve is killed, and
	// resumed with others.
	for _, lie := range []struct {
		by   *node
		said string
	}{{liars[1], liedManifest}, {liars[0], liedChunk}} {
		p, err := n.processes.Start(runner.Spec{Name: "starling-iavl", Path: n.iavl, Args: join(lie.by), Log: filepath.Join(n.dir, "lied-to.log"), Ends: true})
		require.NoError(t, err)
		n.until(lie.by.name+" lies", func() bool { return lie.by.logged(lie.said) > 0 })
		p.Kill()
		<-p.Done()
		require.NoDirExists(t, filepath.Join(fast.home, "data", "application.db"))
	}
	t.Log(n.must(n.iavl, join(n.nodes...)...))
	fast.start()

	joiners := []*node{fast, inBand, sdkOwn}
	head, _, err := n.nodes[0].state()
	require.NoError(t, err)
	for _, d := range joiners {
		d.reach(head)
		t.Logf("%s has joined: height %d", d.name, d.agrees())
	}
	require.Equal(t, 1, inBand.logged("Snapshot restored.*format=21249 "), "the wrapped node joined by verified chunks")
	require.Equal(t, 1, sdkOwn.logged("Snapshot restored.*format=3 "))
	for _, d := range liars {
		t.Logf("%s: %d lies about chunks, %d about manifests, %d in-band", d.name, d.logged(liedChunk), d.logged(liedManifest), d.logged(liedInBand))
	}

	for _, d := range joiners {
		d.reach(head + follows)
		d.agrees()
		require.NoError(t, d.process.Stop(grace))
		d.start()
	}
	last, _, err := n.nodes[0].state()
	require.NoError(t, err)
	for _, d := range joiners {
		d.reach(last + 2)
		d.agrees()
		require.Error(t, d.stored(head), "%s has pruned the state of height %d", d.name, head)
		require.NoError(t, d.stored(last+1))
	}
	require.Greater(t, sent.Load(), int64(follows/4), "coins were sent all the while")
	t.Logf("%d transactions, head %d", sent.Load(), last)
}

// stored fails unless a node has the state of a height.
func (d *node) stored(height int64) error {
	var r struct {
		Response struct {
			Code int    `json:"code"`
			Log  string `json:"log"`
		} `json:"response"`
	}
	if err := d.call(fmt.Sprintf(`abci_query?path="/store/bank/key"&data=0x00&height=%d`, height), &r); err != nil {
		return err
	}
	if r.Response.Code != 0 || r.Response.Log != "" { // a version that is not there has code 0
		return errors.New(r.Response.Log)
	}
	return nil
}
