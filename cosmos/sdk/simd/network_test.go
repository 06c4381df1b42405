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

// TestNetwork runs four validators while coins are sent. Two of them send invalid data to joiners.
// A stock node joins with starling-iavl, a wrapped node in-band from verified chunks only, and a
// stock node from the SDK's own format. All of them follow the chain with the same app hashes, also
// after pruning and a restart.
func TestNetwork(t *testing.T) {
	if testing.Short() {
		t.Skip("a network of processes")
	}
	n := newNetwork(t)
	n.validators()
	honest, liars := n.nodes[:2], n.nodes[2:]
	n.nodes[0].reach(1)
	sent := n.send()

	// Wait for a state to join from, and read the header that joiners trust.
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
		return d
	}

	inBand := newJoiner("in-band", map[string]string{"statesync.enable": "true"})
	inBand.args = append(inBand.args, "--serve")
	inBand.runs(refuseSDK)
	inBand.start()
	sdkOwn := newJoiner("format3", map[string]string{"statesync.enable": "true"})
	// With snapshots, a node that the SDK itself restored prunes nothing.
	sdkOwn.set("config/app.toml", map[string]string{"state-sync.snapshot-interval": "0"})
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
	// A joiner that has no other peer requests data from the Byzantine node. This join is killed,
	// and resumed with all peers.
	for _, lie := range []struct {
		by   *node
		said string
	}{{liars[1], liedManifest}, {liars[0], liedChunk}} {
		p, err := n.processes.Start(runner.Spec{Name: "starling-iavl", Path: n.iavl, Args: join(lie.by), Log: filepath.Join(n.dir, "lied-to.log"), Ends: true})
		require.NoError(t, err)
		n.until(lie.by.name+" sends invalid data", func() bool { return lie.by.logged(lie.said) > 0 })
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
	require.Equal(t, 1, inBand.logged("Snapshot restored.*format=21249 "), "the wrapped node joined from verified chunks")
	require.Equal(t, 1, sdkOwn.logged("Snapshot restored.*format=3 "))
	for _, d := range liars {
		t.Logf("%s: altered %d chunks, %d manifests, %d in-band chunks", d.name, d.logged(liedChunk), d.logged(liedManifest), d.logged(liedInBand))
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
		at := d.agrees()
		require.Error(t, d.stored(head), "%s has pruned the state of height %d", d.name, head)
		require.NoError(t, d.stored(at))
	}
	n.until("coins are sent", func() bool { return sent.Load() > follows/4 })
	t.Logf("%d transactions, head %d", sent.Load(), last)
}

// stored returns an error if a node does not have the state of a height.
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
	if r.Response.Code != 0 || r.Response.Log != "" { // for a missing version, the code is 0
		return errors.New(r.Response.Log)
	}
	return nil
}
