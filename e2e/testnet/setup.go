package testnet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	cfg "github.com/cometbft/cometbft/config"

	"github.com/starling-kv/starling/e2e/manifest"
	"github.com/starling-kv/starling/e2e/relay/link"
	"github.com/starling-kv/starling/e2e/runner"
)

// Prefix is the prefix of the keys that everybody may write.
const Prefix = "load/"

const (
	// keepSnapshots is the number of snapshots that a node serves: a snapshot must outlive a join,
	// even on a slow machine.
	keepSnapshots = 5
	// manyPeers is the limit of peers of a node's transport: all nodes share the few addresses of
	// the relay.
	manyPeers = 1024
	// inits is the number of homes that are made concurrently.
	inits = 4
)

// Setup makes homes, the genesis file and links, and starts only the relay. If it fails it closes
// the provider.
func Setup(ctx context.Context, o Options) (_ *Network, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, o.Provider.Close())
		}
	}()
	ctx, stop := under(ctx, o.Provider.Context())
	defer stop()
	n, err := Make(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.unmountDisks())
		}
	}()
	if err := o.Provider.Prepare(ctx, o.Dir, n.nodes); err != nil {
		return nil, fmt.Errorf("provider %s: %w", o.Provider.Name(), err)
	}
	n.links = pairs(n.nodes)
	if err := n.signRanges(ctx); err != nil {
		return nil, err
	}
	return n, n.treat(ctx, n.links, n.usual())
}

// Make makes the homes of a network and one genesis file. No node has an address yet, and nothing
// runs. Setup is for networks that this process starts.
func Make(ctx context.Context, o Options) (_ *Network, err error) {
	o.complete()
	n := &Network{Manifest: o.Manifest, options: o}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.unmountDisks())
		}
	}()
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, err
	}
	n.order()
	if err := n.choosePrograms(ctx); err != nil {
		return nil, err
	}
	if err := n.mountDisks(); err != nil {
		return nil, err
	}
	return n, n.makeHomes(ctx)
}

// order makes the nodes, in the order in which they start, and sets the peers that each dials. Only
// one node of each pair dials the other: if both dial at once, both may fail and then wait for
// seconds. No node dials one that starts late: after some failures it would retry only rarely.
func (n *Network) order() {
	m := n.Manifest
	for i, name := range m.Names() {
		n.nodes = append(n.nodes, &Node{Name: name, Node: m.Nodes[name], seed: m.Seed + uint64(i)})
	}
	slices.SortStableFunc(n.nodes, func(a, b *Node) int {
		return cmp.Or(cmp.Compare(a.StartAt, b.StartAt), cmp.Compare(rank(a), rank(b)))
	})
	storage, ranges := n.storageNodes()
	var validators, genesis []*Node // that start at genesis
	for _, node := range n.nodes {
		switch {
		case node.Stores():
			continue // see below
		case node.StartAt > 0:
			node.Peers = slices.Clone(genesis)
		case node.Mode == manifest.Validator:
			node.Peers = slices.Clone(validators)
			validators = append(validators, node)
			genesis = append(genesis, node)
		default:
			node.Peers = slices.Clone(validators)
			genesis = append(genesis, node)
		}
		if node.Sharded {
			node.Peers = append(node.Peers, storage...)
			node.ranges = ranges
		}
	}
	for _, node := range storage {
		node.mapped = n.changesRanges()
	}
	for _, node := range storage { // they need headers, and each other if one has lost its range
		node.ranges = ranges
		node.Peers = slices.Clone(validators)
		for _, other := range storage {
			if other != node {
				node.Peers = append(node.Peers, other)
			}
		}
	}
}

// rank orders storage nodes before validators, and validators before others.
func rank(n *Node) int {
	return slices.Index([]manifest.Mode{manifest.Storage, manifest.Validator, manifest.Full}, n.Mode)
}

// choosePrograms sets the first program of each node, and builds old versions.
func (n *Network) choosePrograms(ctx context.Context) error {
	for _, node := range n.nodes {
		switch {
		case node.Lies():
			node.Program = n.options.Programs.Byzantine
		case node.Version != "":
			program, err := BuildVersion(ctx, node.Version)
			if errors.Is(err, ErrNoVersion) {
				n.log("NOT RUN: upgrade of %s from another version, it runs the present one: %v", node.Name, err)
				program, err = n.options.Programs.Starlingd, nil
			}
			if err != nil {
				return fmt.Errorf("%s: %w", node.Name, err)
			}
			node.Program = program
		default:
			node.Program = n.options.Programs.Starlingd
		}
	}
	return nil
}

// makeHomes makes all homes, each with the node's first program, and one genesis file.
func (n *Network) makeHomes(ctx context.Context) error {
	slots := make(chan struct{}, inits)
	err := each(n.nodes, func(node *Node) (err error) {
		slots <- struct{}{}
		defer func() { <-slots }()
		program := node.Program
		if node.Lies() {
			program = n.options.Programs.Starlingd
		}
		dir := filepath.Join(n.options.Dir, node.Name)
		if disk, small := n.disks[node]; small {
			dir = filepath.Join(disk, "home")
		}
		args := n.options.Init(node.Name, dir)
		if node.Network != "" {
			args = append(args, "--network", string(node.Network))
		}
		node.Home, err = runner.InitHome(ctx, node.Name, dir, program, args...)
		if err != nil {
			return err
		}
		node.Home.Power = node.Power
		// not on a disk that a step fills
		node.Home.LogFile = filepath.Join(n.options.Dir, node.Name+".log")
		node.Env = append(environment(node), n.options.Env...)
		return node.Home.Configure(func(c *cfg.Config) { n.configure(node, c) })
	})
	if err != nil {
		return err
	}
	var validators, others []*runner.Home
	for _, node := range n.nodes {
		// including validators that start late: the others have enough power without them
		if node.Mode == manifest.Validator {
			validators = append(validators, node.Home)
		} else {
			others = append(others, node.Home)
		}
	}
	n.Genesis, err = runner.Genesis(validators, others, n.ChainID(), n.options.AppState)
	return err
}

// configure sets the settings of CometBFT.
func (n *Network) configure(node *Node, c *cfg.Config) {
	if node.Network == "" { // otherwise its own program has chosen them
		trip := time.Duration(n.Manifest.Link.Delay)
		c.Consensus.TimeoutCommit, c.Consensus.CreateEmptyBlocksInterval = time.Duration(n.Manifest.BlockPause), 0
		// Short, for the rounds whose proposer is down.
		c.Consensus.TimeoutPropose = time.Second + 4*trip
		c.Consensus.TimeoutPrevote = 500*time.Millisecond + 2*trip
		c.Consensus.TimeoutPrecommit = 500*time.Millisecond + 2*trip
	}
	c.LogLevel = "consensus:error,state:error,p2p:error,mempool:error,txindex:error,*:info"
	n.options.Configure(c)
}

// environment returns a node's settings in the manifest as variables for its program.
func environment(n *Node) []string {
	env := []string{
		fmt.Sprintf("STARLINGD_SNAPSHOTS_KEEP_RECENT=%d", keepSnapshots),
		fmt.Sprintf("STARLINGD_TRANSPORT_MAX_PEERS=%d", manyPeers),
		fmt.Sprintf("STARLINGD_TRANSPORT_MAX_PEERS_PER_HOST=%d", manyPeers),
		fmt.Sprintf("STARLINGD_TRANSPORT_SEND_RATE=%d", n.SendRate),
	}
	if n.Join == manifest.InBand {
		env = append(env, "STARLINGD_JOIN_MODE=cometbft")
	}
	if n.Sharded {
		env = append(env, "STARLINGD_STATE_MODE=sharded", "STARLINGD_STATE_RETAIN_DEPTH=4", "STARLINGD_STATE_RETAIN_WINDOW_BLOCKS=16")
		if !n.replicated() {
			env = append(env, "STARLINGD_STATE_MIN_ACKS=1")
		}
	}
	if n.Sharded || n.Stores() { // a container has less memory than the sum of the default budgets
		env = append(env, "STARLINGD_MIN_MEMORY_BYTES=1")
	}
	if n.Stores() { // few, so that runs write the states to disk, and drop old heights
		env = append(env, "STARLINGD_STORAGE_NODE_SERVE_HEIGHTS=32")
	}
	if n.Paged {
		env = append(env, "STARLINGD_DISK_STATE_IN_MEMORY=false", "STARLINGD_DISK_CACHE_BYTES=16777216")
	}
	return env
}

// usual is the treatment of all links by the manifest.
func (n *Network) usual() link.Treatment {
	return link.Treatment{Delay: time.Duration(n.Manifest.Link.Delay), Bandwidth: n.Manifest.Link.Bandwidth}
}

// each calls do for all nodes concurrently, and returns the joined errors.
func each(nodes []*Node, do func(*Node) error) error {
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, node := range nodes {
		wg.Go(func() { errs[i] = do(node) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
