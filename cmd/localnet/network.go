package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/starling-kv/starling/e2e/manifest"
	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/e2e/testnet"
)

const (
	chainID = "localnet"

	// A snapshot every 15 blocks of somewhat more than half a second each. CometBFT (--in-band)
	// dials its peers within three seconds and asks each for its snapshots at that moment. The
	// interval is long enough that a node which joins right after a snapshot finds the same newest
	// snapshot at all peers.
	snapshotInterval = 15
	blockPause       = 400 * time.Millisecond
)

// network is the network of the demonstration, and its output.
type network struct {
	options
	*testnet.Network
	provider *testnet.Processes
	screen   *screen
	dir      string

	loading *meter // of Load
	joiner  *testnet.Node
}

// manifest describes the network that the options ask for.
func (o options) manifest() *manifest.Manifest {
	m := &manifest.Manifest{
		Name: chainID, Seed: o.Seed, ChunkBytes: chunkBytes(o.Keys), SnapshotInterval: snapshotInterval,
		BlockPause: manifest.Duration(blockPause), Shards: o.Shards,
		Load: manifest.Load{InitialKeys: o.Keys, ValueBytes: valueBytes}, Nodes: map[string]manifest.Node{},
	}
	sharded := o.Shards > 0
	for i := range o.Validators {
		m.Nodes[fmt.Sprintf("validator-%d", i)] = manifest.Node{Sharded: sharded && i > 0}
	}
	for i := range o.Liars {
		m.Nodes[fmt.Sprintf("liar-%d", i)] = manifest.Node{Mode: manifest.Full, Lie: o.lie(i)}
	}
	for i := range o.Shards {
		m.Nodes[fmt.Sprintf("storage-%d", i)] = manifest.Node{Mode: manifest.Storage}
	}
	joiner := manifest.Node{Mode: manifest.Full, StartAt: 1, Sharded: sharded}
	if o.InBand {
		joiner.Join = manifest.InBand
	}
	m.Nodes["joiner"] = joiner
	m.Complete()
	return m
}

// setUp makes the homes of all nodes and one genesis file.
func (n *network) setUp(ctx context.Context) error {
	programs, err := programs(n.dir)
	if err != nil {
		return err
	}
	n.Network, err = testnet.Setup(ctx, testnet.Options{
		Manifest: n.manifest(), Provider: n.provider, Programs: programs, Dir: n.dir, ChainID: chainID,
		Open:    true, // so that the reader can try `curl …/broadcast_tx_commit?tx="name=value"`
		Loading: func(written int) { n.loading.set(int64(written), int64(n.Keys), "in signed transactions") },
	})
	if err != nil {
		return err
	}
	n.joiner = n.Node("joiner")
	return nil
}

// programs creates this program's other names in a folder. Started under one of them, it is
// starlingd or the Byzantine peer, so that one build is enough for all processes.
func programs(dir string) (p testnet.Programs, err error) {
	self, err := os.Executable()
	if err != nil {
		return p, err
	}
	dir = filepath.Join(dir, "bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return p, err
	}
	p = testnet.Programs{Starlingd: filepath.Join(dir, nameStarlingd), Byzantine: filepath.Join(dir, nameByzantine)}
	for _, name := range []string{p.Starlingd, p.Byzantine} {
		if err := os.Symlink(self, name); err != nil {
			return p, err
		}
	}
	return p, nil
}

// validators and liars are the nodes that run before the joiner starts.
func (n *network) validators() []*testnet.Node {
	return n.nodes(func(node *testnet.Node) bool { return node.Mode == manifest.Validator })
}

func (n *network) liars() []*testnet.Node { return n.nodes((*testnet.Node).Lies) }

func (n *network) nodes(are func(*testnet.Node) bool) []*testnet.Node {
	return slices.DeleteFunc(slices.Clone(n.Nodes()), func(node *testnet.Node) bool { return !are(node) })
}

// reach waits until the applications of nodes have executed the block at height.
func (n *network) reach(ctx context.Context, nodes []*testnet.Node, height int64) error {
	for _, node := range nodes {
		err := runner.Poll(ctx, fmt.Sprintf("%s to reach height %d", node.Name, height), func() bool {
			at, err := node.Home.AppInfo(ctx)
			return err == nil && at.Height >= height
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// height returns the height of the most advanced validator.
func (n *network) height(ctx context.Context) int64 {
	var height int64
	for _, node := range n.validators() {
		if at, err := node.Home.AppInfo(ctx); err == nil {
			height = max(height, at.Height)
		}
	}
	return height
}

// folder creates the folder for the homes; temporary reports whether it must be removed at the end.
func folder(o options) (dir string, temporary bool, err error) {
	if o.Dir == "" {
		dir, err = os.MkdirTemp("", "starling-localnet-")
		return dir, !o.Keep, err
	}
	if dir, err = filepath.Abs(o.Dir); err != nil {
		return "", false, err
	}
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return "", false, fmt.Errorf("--dir %s is not empty: use a new folder, or remove this one", o.Dir)
	}
	return dir, false, os.MkdirAll(dir, 0o755)
}
