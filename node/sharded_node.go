package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/dustin/go-humanize/english"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/client"
	"github.com/starling-kv/starling/dsm/client/feed"
	"github.com/starling-kv/starling/node/buildinfo"
	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/health"
	"github.com/starling-kv/starling/node/join"
	"github.com/starling-kv/starling/node/statuspage"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/peers"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// newSharded creates an application whose state storage nodes keep. If the home has blocks, it
// waits for the storage nodes.
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
		App: application, backing: s, cache: o.Cache, joined: new(atomic.Int64), interval: genesis.SnapshotInterval, metrics: metrics, events: log,
		snapshots: statesync.NewManager(statesync.Options{Logger: o.Logger.With("module", "snapshots"), Metrics: metrics}),
	}, nil
}

// FinalizeBlock calls the application's FinalizeBlock.
func (a *Application) FinalizeBlock(ctx context.Context, req *abci.RequestFinalizeBlock) (*abci.ResponseFinalizeBlock, error) {
	a.backing.finalizing(req.DecidedLastCommit.Votes)
	res, err := a.App.FinalizeBlock(ctx, req)
	a.backing.finalized(err)
	return res, err
}

// prepareSharded completes the options of an application whose state storage nodes keep. While it
// waits for them, a status page shows that, and the transport serves this home's headers; the
// caller closes both.
func (n *Node) prepareSharded(o *ApplicationOptions, have comet.Heights, validator cmttypes.PrivValidator) error {
	if err := shardedBudgets(n.config, runtime.GOMAXPROCS(0)).Check(n.config.App.MinMemoryBytes); err != nil {
		return err
	}
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
	n.others = peers.New(peers.Options{
		Logger: n.log.With("module", "other-nodes"), Dialer: dialer, Addresses: addresses, Self: transport.ID(n.ID()), Strict: n.config.CometBFT.P2P.AddrBookStrict,
		Skip: n.isStorageNode,
	})
	o.Sharded = &ShardedOptions{
		Home: n.config.Home, ID: transport.ID(n.ID()), Dialer: dialer, Helpers: n.others.Conns, Own: own, Life: n.life,
		Joins: have.None() && join.Allowed(n.config, isOnlyValidator(validator, n.genesis)),
		Opened: func(s *sharded) error {
			n.sharded.Store(s)
			n.wg.Go(func() { s.maps.Run(n.life) })
			if own.newest == 0 {
				return nil // it does not wait
			}
			if err := n.serveWaiting(have); err != nil || n.config.App.Status.ListenAddress == "" {
				return err
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

// isStorageNode reports whether a node keeps a part of the state. Package dsm/client already
// connects to these nodes, and they have neither blocks nor headers.
func (n *Node) isStorageNode(id transport.ID) bool {
	s := n.sharded.Load()
	if s == nil {
		return false
	}
	_, is := s.maps.Current().Addresses[dsm.NodeID(id)]
	return is
}

// waitingSource is the source of the status page before the application exists, while it waits for
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

// serveWaiting serves the headers of this home while the application waits for storage nodes. One
// that begins with the genesis state needs the first header.
func (n *Node) serveWaiting(have comet.Heights) error {
	if n.serving.wrong != nil || n.serving.address == "" {
		return n.serving.wrong
	}
	mux := new(transport.Mux)
	mux.Handle(protocol.MethodStatus, transport.HandlerFunc(func(context.Context, transport.Request) ([]byte, error) {
		return protocol.Status{Base: have.Base, Height: have.Block}.Encode(), nil
	}))
	n.serving.light.Register(mux)
	n.sharded.Load().maps.Register(mux)
	if err := n.listen(mux); err != nil {
		return err
	}
	return n.setHeaders()
}

// serveHeaders serves the headers of this home before CometBFT is made: a storage node needs the
// header of the next block to apply a block, and the start of a sharded validator may wait for
// storage nodes.
func (n *Node) serveHeaders(have comet.Heights) error {
	if !n.application.backing.needsHeaders() || have.None() {
		return nil
	}
	return n.setHeaders()
}

func (n *Node) setHeaders() error {
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

// waiting describes what the node waits for from storage nodes; "": nothing.
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
		parts = append(parts, fmt.Sprintf("the next block waits until storage nodes have stored the last blocks of the keys in %v", r))
	}
	for _, w := range st.Waits {
		var tried []string
		for _, t := range w.Tried {
			tried = append(tried, fmt.Sprintf("%s: %s", s.store.name(t.Node), t.Why))
		}
		parts = append(parts, fmt.Sprintf("no storage node answers requests for the keys in %v (%s)", w.Range, strings.Join(tried, ", ")))
	}
	return strings.Join(parts, "; ")
}

// replicaState describes a replica. One that still receives updates, but is far behind, is not in
// step for an operator.
func replicaState(n client.NodeStatus) string {
	if n.State == feed.InStep && n.Blocks > client.MaxBehind {
		return "behind"
	}
	return n.State.String()
}

func (s *sharded) degraded() string { return degraded(s.source.Status().Ranges) }

// degraded names the replicas that are missing; "": all are connected and in step.
func degraded(ranges []client.RangeStatus) string {
	const most = 3 // ranges to name
	var parts []string
	others := 0
	for _, r := range ranges {
		if r.Next {
			continue // its nodes are still filling it
		}
		var missing []string
		for _, n := range r.Nodes {
			who, behind := fmt.Sprintf("%s@%s", n.Node, n.Address), english.Plural(int(n.Blocks), "block", "")+" behind"
			switch {
			case !n.Connected:
				missing = append(missing, who+" is down")
			case n.State != feed.InStep:
				missing = append(missing, fmt.Sprintf("%s is %s, %s", who, n.State, behind))
			case n.Blocks > client.MaxBehind:
				missing = append(missing, who+" is "+behind)
			}
		}
		switch {
		case len(missing) == 0:
		case len(parts) == most:
			others++
		default:
			parts = append(parts, fmt.Sprintf("range %v has %d of %d replicas in step (%s)", r.Range, len(r.Nodes)-len(missing), len(r.Nodes), strings.Join(missing, ", ")))
		}
	}
	if others > 0 {
		parts = append(parts, "and "+english.Plural(others, "other range", ""))
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
				ID: string(n.Node), Address: n.Address, Connected: n.Connected, Error: n.Error, State: replicaState(n), Newest: n.Newest, Durable: n.Durable, LagBlocks: n.Blocks,
			})
		}
		status.Ranges = append(status.Ranges, shown)
	}
	for _, l := range st.Liars {
		status.Liars = append(status.Liars, statuspage.ShardLiar{ID: string(l.Node), Range: l.Range.String(), Verdict: string(l.Verdict), Count: l.Count, Last: l.Last})
	}
	return status
}
