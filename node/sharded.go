package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/crypto"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm/client"
	"github.com/starling-kv/starling/dsm/client/ask"
	"github.com/starling-kv/starling/dsm/client/feed"
	"github.com/starling-kv/starling/node/budget"
	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/rangemap"
	"github.com/starling-kv/starling/transport"
)

// ShardedOptions configures an application whose state storage nodes keep.
type ShardedOptions struct {
	Home   string
	ID     transport.ID
	Dialer transport.Dialer // connects to the storage nodes
	// Helpers is client.Options.Helpers.
	Helpers func() []transport.Conn
	// Self is the address of this node's validator; nil: none.
	Self crypto.Address
	Own  ownBlocks
	// Joins: a join will fetch the state after the application has been created.
	Joins bool
	// Opened is called before the first wait for storage nodes; may be nil.
	Opened func(*sharded) error
	// Life ends all waits for storage nodes.
	Life context.Context //nolint:containedctx // the lifetime of the created objects

	times storeTimes
}

// sharded is the backing of an application whose state storage nodes keep, instead of a state zone.
type sharded struct {
	source *client.Client
	store  *shardedStore
	maps   *rangemap.Maps
	self   crypto.Address
	failed func(error) // stops the node
	// Arguments of the last call of Validators; used by FinalizeBlock only.
	addresses [][]byte // nil before the first call
	number    int
}

// openSharded checks the home, and connects to the storage nodes.
func openSharded(o ApplicationOptions) (*sharded, error) {
	if o.Sharded == nil || o.Genesis == nil {
		return nil, config.Invalid(fmt.Errorf("[state] mode = %q is for `starlingd start`: it needs CometBFT's blocks in the same process", config.ModeSharded))
	}
	c := o.Config.State
	if err := checkSharded(o); err != nil {
		return nil, err
	}
	nodes, err := config.LoadStorageNodes(o.Sharded.Home, c.StorageNodes)
	if err != nil {
		return nil, err
	}
	metrics := client.NopMetrics()
	if o.Metrics != nil {
		metrics = client.NewMetrics(o.Metrics)
	}
	policy := feed.DefaultPolicy()
	policy.MinAcks, policy.MaxLagBlocks, policy.MaxLagBytes, policy.KeepBytes = c.MinAcks, c.MaxLagBlocks, uint64(c.MaxLagBytes), uint64(c.KeepUpdatesBytes)
	logger := o.Logger.With("module", "storage-nodes")
	s, err := client.New(client.Options{
		Logger: logger, Map: mapOf(nodes), Dialer: o.Sharded.Dialer,
		Ask: ask.DefaultPolicy(), Feed: policy, Metrics: metrics, Helpers: o.Sharded.Helpers,
	})
	if err != nil {
		return nil, config.Invalid(err)
	}
	if err := config.MarkSharded(o.DataDir, o.Genesis.ChainID); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	times := o.Sharded.times
	if times == (storeTimes{}) {
		times = defaultStoreTimes()
	}
	opened := &sharded{source: s, self: o.Sharded.Self, failed: o.Failed}
	opened.maps, err = rangemap.New(rangemap.Options{
		Logger: logger, Home: o.Sharded.Home, File: c.StorageNodes, ChainID: o.Genesis.ChainID, Self: o.Sharded.ID, Dialer: o.Sharded.Dialer,
		Peers: o.Sharded.Helpers, Use: func(nodes *config.StorageNodes) error { return s.SetMap(mapOf(nodes)) },
	}, nodes)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if o.Metrics != nil {
		err := o.Metrics.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "starling", Subsystem: "dsm", Name: "map_version",
			Help: "Version of the newest map of the ranges that the node has; 0: the file is not signed.",
		}, func() float64 { return float64(opened.maps.Current().Version) }))
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	opened.store = &shardedStore{
		log: logger, source: s, nodes: opened.maps.Current, own: o.Sharded.Own, joins: o.Sharded.Joins, depth: c.RetainDepth, life: o.Sharded.Life, times: times,
	}
	opened.validators(genesisAddresses(o.Genesis))
	if o.Sharded.Opened != nil {
		if err := o.Sharded.Opened(opened); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return opened, nil
}

func mapOf(nodes *config.StorageNodes) client.Map {
	return client.Map{Ranges: nodes.Ranges, Next: nodes.Next, Addresses: nodes.Addresses}
}

// checkSharded refuses a home of the other mode or of another chain, and a tree that does not fit
// into memory.
func checkSharded(o ApplicationOptions) error {
	if err := config.CheckMode(o.DataDir, config.ModeSharded); err != nil {
		return err
	}
	if _, chain, err := config.ModeOf(o.DataDir); err != nil {
		return err
	} else if chain != "" && chain != o.Genesis.ChainID {
		return fmt.Errorf("%w: the home has chain %q, the genesis file has %q: use another home folder or its genesis file", app.ErrOtherChain, chain, o.Genesis.ChainID)
	}
	need := upperTreeBytes(o.Config.State.RetainDepth)
	total, known := budget.Available()
	switch {
	case known && need > total:
		return config.Invalid(fmt.Errorf("state.retain_depth is %d: this upper tree can take %d MiB, but %d MiB of memory are available: set a lower depth",
			o.Config.State.RetainDepth, need>>20, total>>20))
	case known && need > total/2:
		o.Logger.Error("state.retain_depth is high: the upper tree alone can take more than half of the memory",
			"retain_depth", o.Config.State.RetainDepth, "bytes", need, "memory", total)
	}
	return nil
}

// upperTreeBytes returns the approximate maximum size of the nodes above a depth: each inner node
// has its image, links and key.
func upperTreeBytes(depth int) uint64 { return 100 << depth }

// blockWitnessBytes limits the state that a decided block may bring: a quarter of the memory,
// because it exists twice while it is added to the tree.
func blockWitnessBytes() int {
	const unknown = 4 << 30 // 16 proposals' worth
	total, known := budget.Available()
	if !known {
		return unknown
	}
	return int(total / 4)
}

// options completes the options of the application.
func (s *sharded) options(o ApplicationOptions, to *app.Options) {
	c := o.Config.State
	to.Store, to.Source, to.WitnessTimeout, to.Life = s.store, s.source, c.WitnessTimeout, o.Sharded.Life
	to.BlockWitnessBytes = blockWitnessBytes()
	to.Edges = s.source.Edges
	budget := o.Config.Disk.CacheBytes
	to.Retention = avlstar.Retention{
		Depth: c.RetainDepth, Window: c.Window, Keep: keepEdges(to.Edges), Least: s.store.unacknowledged,
		Budget: func() int64 { return budget },
	}
}

// keepEdges reports whether a subtree is on the path to an edge, or to the leaf before it: each
// update contains these paths. The edges are in ascending order.
func keepEdges(of func() [][]byte) func(first, after []byte) bool {
	return func(first, after []byte) bool {
		edges := of()
		i := sort.Search(len(edges), func(i int) bool { return bytes.Compare(edges[i], first) >= 0 })
		return i < len(edges) && (after == nil || bytes.Compare(edges[i], after) <= 0)
	}
}

// finalizing passes the validators of the last block to the source, in the order of their
// addresses, so that all of them number each other identically.
func (s *sharded) finalizing(votes []abci.VoteInfo) {
	if len(votes) == 0 {
		return // the first block: the source knows the genesis validators
	}
	addresses := make([][]byte, len(votes))
	for i, v := range votes {
		addresses[i] = v.Validator.Address
	}
	s.validators(addresses)
}

func (s *sharded) validators(addresses [][]byte) {
	slices.SortFunc(addresses, bytes.Compare)
	number := slices.IndexFunc(addresses, func(a []byte) bool { return len(s.self) > 0 && bytes.Equal(a, s.self) })
	if number != s.number || !slices.EqualFunc(addresses, s.addresses, bytes.Equal) {
		s.addresses, s.number = addresses, number
		s.source.Validators(len(addresses), number)
	}
}

func genesisAddresses(genesis *cmttypes.GenesisDoc) [][]byte {
	var addresses [][]byte
	for _, v := range genesis.Validators {
		addresses = append(addresses, v.PubKey.Address())
	}
	return addresses
}

// ownBlocksOf describes CometBFT's blocks. Its databases must stay open.
func ownBlocksOf(databases *comet.Databases, have comet.Heights, genesis *cmttypes.GenesisDoc) (ownBlocks, error) {
	own := ownBlocks{initial: max(genesis.InitialHeight, 1)}
	if have.None() {
		return own, nil
	}
	blocks, err := databases.Blocks()
	if err != nil {
		return own, err
	}
	states, err := databases.States()
	if err != nil {
		return own, err
	}
	state, err := states.Load()
	if err != nil {
		return own, fmt.Errorf("CometBFT's state database: %w", err)
	}
	// The state after the last block is unknown before its results are stored; CometBFT then
	// executes that block again.
	own.newest = state.LastBlockHeight
	switch {
	case have.Block == 0:
		own.least = own.newest // after a join: no block yet
	case have.Base <= own.initial:
		own.least, own.newest = own.initial-1, max(own.newest, own.initial-1)
	default:
		own.least = have.Base - 1
	}
	own.appHash = func(height int64) (hash avlstar.Hash, err error) {
		raw := state.AppHash
		if height != state.LastBlockHeight {
			meta := blocks.LoadBlockMeta(height + 1)
			if meta == nil {
				return hash, fmt.Errorf("block %d is missing, whose header has the app hash of the state before it", height+1)
			}
			raw = meta.Header.AppHash
		}
		if len(raw) != len(hash) {
			return hash, fmt.Errorf("the app hash of the state after block %d has %d bytes", height, len(raw))
		}
		return avlstar.Hash(raw), nil
	}
	return own, nil
}
