package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/health"
	"github.com/starling-kv/starling/node/buildinfo"
	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/join"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/fastsync"
	"github.com/starling-kv/starling/statuspage"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// newSharded makes an application whose state storage nodes keep. It waits for them if there are
// blocks.
func newSharded(o ApplicationOptions) (_ *Application, err error) {
	s, err := openSharded(o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.source.Close())
		}
	}()
	genesis, err := app.ParseGenesis(o.Genesis.AppState)
	if err != nil {
		return nil, err
	}
	log, err := openEvents(o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, closeEvents(log))
		}
	}()
	options, err := o.forApp(log)
	if err != nil {
		return nil, err
	}
	options.ChainID = o.Genesis.ChainID
	var metrics *statesync.Metrics
	if o.Metrics != nil {
		options.Metrics, metrics = app.NewMetrics(o.Metrics), statesync.NewMetrics("starling", o.Metrics)
	}
	s.options(o, &options)
	application, err := app.New(options)
	if err != nil {
		return nil, err
	}
	return &Application{
		App: application, sharded: s, cache: o.Cache, joined: new(atomic.Int64), interval: genesis.SnapshotInterval, metrics: metrics, events: log,
		snapshots: statesync.NewManager(statesync.Options{Logger: o.Logger.With("module", "snapshots"), Metrics: metrics}),
	}, nil
}

// FinalizeBlock is that of the application.
func (a *Application) FinalizeBlock(ctx context.Context, req *abci.RequestFinalizeBlock) (*abci.ResponseFinalizeBlock, error) {
	if a.sharded != nil {
		a.sharded.finalizing(req.DecidedLastCommit.Votes)
	}
	res, err := a.App.FinalizeBlock(ctx, req)
	if errors.Is(err, app.ErrBlockWitnesses) { // no time resolves that
		a.sharded.failed(err)
	}
	return res, err
}

// prepareSharded completes the options of an application whose state storage nodes keep. While it
// waits for them, a status page says so, which the caller closes.
func (n *Node) prepareSharded(o *ApplicationOptions, have comet.Heights, validator cmttypes.PrivValidator) error {
	key, err := config.TransportKey(n.nodeKey)
	if err != nil {
		return err
	}
	own, err := ownBlocksOf(n.databases, have, n.genesis)
	if err != nil {
		return err
	}
	addresses, err := config.JoinAddresses(n.config)
	if err != nil {
		return err
	}
	dialer := tcp.NewDialer(tcp.Options{Key: key, ChainID: n.genesis.ChainID, Sides: n.paths.Sides()})
	n.others = fastsync.NewPeers(fastsync.PeersOptions{
		Logger: n.log.With("module", "other-nodes"), Dialer: dialer, Addresses: addresses, Self: transport.ID(n.ID()), Strict: n.config.CometBFT.P2P.AddrBookStrict,
		Skip: n.isStorageNode,
	})
	o.Sharded = &ShardedOptions{
		Home: n.config.Home, Dialer: dialer, Others: n.others.Conns, Own: own, Life: n.life,
		Joins: have.None() && join.Allowed(n.config, isOnlyValidator(validator, n.genesis)),
		Opened: func(s *sharded) error {
			n.storageNodes.Store(s.nodes)
			if own.newest == 0 || n.config.App.Status.ListenAddress == "" {
				return nil
			}
			w := waitingSource{n, s}
			return n.listenStatus(n.life, w, func(mux *http.ServeMux) { health.Register(mux, w.health) })
		},
	}
	if validator == nil {
		return nil
	}
	public, err := validator.GetPubKey()
	if err != nil {
		return fmt.Errorf("the validator's key: %w", err)
	}
	o.Sharded.Self = public.Address()
	return nil
}

// isStorageNode reports whether a node keeps a part of the state: package dsm/source is connected
// to these already, and they have neither blocks nor headers.
func (n *Node) isStorageNode(id transport.ID) bool {
	nodes := n.storageNodes.Load()
	if nodes == nil {
		return false
	}
	_, is := nodes.Addresses[dsm.Node(id)]
	return is
}

// waitingSource is what the status page shows before there is an application, since it waits for
// storage nodes.
type waitingSource struct {
	n *Node
	s *sharded
}

var _ statuspage.Source = waitingSource{}

func (w waitingSource) Status() statuspage.Status {
	versions := buildinfo.Read()
	return statuspage.Status{
		Time: time.Now().UTC(), Phase: statuspage.PhaseStarting, Disk: statusSource{w.n}.disk(), Sharded: w.s.status(),
		RDMA: w.n.paths.Status(w.n.config.CometBFT.P2P.PrivatePeerIDs),
		Node: statuspage.Node{
			Moniker: w.n.config.CometBFT.Moniker, ID: w.n.ID(), ChainID: w.n.genesis.ChainID, Version: versions.Starling, CometBFT: versions.CometBFT,
		},
		Chain: statuspage.Chain{Height: w.s.store.own.newest}, Caches: []statuspage.Cache{}, Snapshots: []int64{},
	}
}

func (w waitingSource) Map() statuspage.Map { return statuspage.Map{PerCell: 1} }

func (w waitingSource) health() health.Report {
	facts := HealthFacts(w.n.config)
	facts.Waiting, facts.Height = w.s.waiting(), w.s.store.own.newest
	return health.Of(facts)
}

// serveHeaders serves the headers of this home before there is a CometBFT: storage nodes need that
// of the next block to take a block up, and the start of a sharded validator may wait for them.
func (n *Node) serveHeaders(have comet.Heights) error {
	if n.application.sharded == nil || have.None() {
		return nil
	}
	blocks, err := n.databases.Blocks()
	if err != nil {
		return err
	}
	states, err := n.databases.States()
	if err != nil {
		return err
	}
	n.serving.setStores(blocks, states, nil)
	return nil
}

// waiting returns what the node waits for, of storage nodes; "": nothing.
func (s *sharded) waiting() string {
	if w := s.store.waiting(); w != "" {
		return w
	}
	st := s.source.Status()
	var parts []string
	if st.Failed != "" {
		parts = append(parts, st.Failed)
	}
	for _, r := range st.Blocked {
		parts = append(parts, fmt.Sprintf("the next block waits until storage nodes have the last ones of the keys in %v", r))
	}
	for _, w := range st.Waits {
		var tried []string
		for _, t := range w.Tried {
			tried = append(tried, fmt.Sprintf("%s: %s", s.store.name(t.Node), t.Why))
		}
		parts = append(parts, fmt.Sprintf("nobody answers what is asked of the keys in %v (%s)", w.Range, strings.Join(tried, ", ")))
	}
	return strings.Join(parts, "; ")
}

func (s *sharded) status() *statuspage.Sharded {
	st := s.source.Status()
	status := &statuspage.Sharded{
		Head: st.Head, Durable: st.Durable, Lag: max(0, st.Head-st.Durable), Waiting: s.waiting(), Ranges: []statuspage.ShardRange{}, Liars: []statuspage.ShardLiar{},
	}
	for _, r := range st.Ranges {
		shown := statuspage.ShardRange{Range: r.Range.String(), Durable: r.Durable, QueuedBytes: r.Queued}
		for _, n := range r.Nodes {
			shown.Nodes = append(shown.Nodes, statuspage.ShardNode{
				ID: string(n.Node), Address: n.Address, Connected: n.Connected, Error: n.Error, State: n.State.String(), Newest: n.Newest, Durable: n.Durable, LagBlocks: n.Blocks,
			})
		}
		status.Ranges = append(status.Ranges, shown)
	}
	for _, l := range st.Liars {
		status.Liars = append(status.Liars, statuspage.ShardLiar{ID: string(l.Node), Range: l.Range.String(), Verdict: string(l.Verdict), Count: l.Count, Last: l.Last})
	}
	return status
}
