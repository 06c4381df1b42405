package join

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/p2p"
	sm "github.com/cometbft/cometbft/state"
	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/catchup"
	"github.com/starling-kv/starling/statesync/lightblocks"
	"github.com/starling-kv/starling/statesync/peers"
	"github.com/starling-kv/starling/statesync/restore"
	"github.com/starling-kv/starling/statesync/snapshot"
	"github.com/starling-kv/starling/statesync/view"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// Progress is the progress of a join.
type Progress = view.Progress

// The phases of a Progress.
const (
	PhaseLooking   = view.PhaseLooking
	PhaseVerifying = view.PhaseVerifying
	PhaseFetching  = view.PhaseFetching
	PhaseWriting   = view.PhaseWriting
	PhaseDone      = view.PhaseDone
)

// BootstrapTimeout limits fetching the few headers of a height that CometBFT's state needs.
const BootstrapTimeout = time.Minute

const (
	// oldSnapshots is the maximum distance, in snapshot intervals, of a new node's snapshot below
	// the trusted header.
	oldSnapshots = 4
	// bootstrapTries limits the attempts to fetch the headers of a state, and bootstrapPause is the
	// time between two attempts.
	bootstrapTries = 10
	bootstrapPause = 2 * time.Second
	// newestPoll is the interval of checks for the newest proved height, and newestAge how long a
	// height counts as the newest.
	newestPoll = 100 * time.Millisecond
	newestAge  = time.Second
)

// Way is the task of a start over the transport.
type Way int

// The ways.
const (
	// Nothing: CometBFT continues from its blocks, or joins by its own state sync.
	None Way = iota
	New      // the home is empty, or has the state of an interrupted join
	// The last block is old: fetch the parts of the state that differ, if the peers are far ahead.
	CatchUp
	Finish // a catch-up was interrupted: the state of the blocks no longer exists
	// The last block is old, and the state is never fetched: fetch blocks, if the peers have more.
	Blocks
)

// State is the state of a node's application, which a join replaces.
type State interface {
	// Height is the height of the last block; 0: no state.
	Height() int64
	// Latest returns the last version with a reference that the caller must release; nil: none.
	Latest() (int64, *avlstar.Version)
	// Stored describes the state on disk.
	Stored() (meta storage.Meta, ok bool)
	// Whole returns a version of the state of v, the last version, which can be read while a
	// restore empties the disk; the caller releases it. It returns nil if the state may exceed
	// memory.
	Whole(ctx context.Context, v *avlstar.Version) (*avlstar.Version, error)
	// Target receives a new state.
	Target() restore.Target
	// Replace allows the next restore to replace a state that has blocks.
	Replace()
	// SnapshotInterval is that of the genesis file, in blocks; 0: unknown.
	SnapshotInterval() int64
}

// Chain is CometBFT's databases before CometBFT is made.
type Chain interface {
	Own
	// PutAside empties them and opens them again. With any false, there are none, and only the
	// remains of a killed PutAside are removed.
	PutAside(any bool) error
	// Bootstrap records for CometBFT that a height was reached without its blocks.
	Bootstrap(state sm.State, commit *cmttypes.Commit, before []lightblocks.Ancestor, gap comet.Gap) error
}

// Executor is the node's own chain before CometBFT is made.
type Executor interface {
	catchup.Chain
	Close() error
}

// Times limits the time to find out whether catching up, or joining over the transport, is
// worthwhile. 0: the default.
type Times struct {
	// Age is the age of the last block above which a node asks peers for their height; default 5
	// minutes.
	Age    time.Duration
	Ask    time.Duration // wait for a peer; default 10 seconds
	Newest time.Duration // wait for peers to prove the chain's height; default 3 seconds
	// Choose limits the search for a snapshot by a new node that has RPC servers, and so an
	// alternative; default 5 minutes.
	Choose time.Duration
	Stall  time.Duration // see catchup.Options; default as there
}

// orDefault returns t with 0 replaced by the defaults.
func (t Times) orDefault() Times {
	for _, d := range []struct {
		value  *time.Duration
		normal time.Duration
	}{{&t.Age, 5 * time.Minute}, {&t.Ask, 10 * time.Second}, {&t.Newest, 3 * time.Second}, {&t.Choose, 5 * time.Minute}} {
		if *d.value == 0 {
			*d.value = d.normal
		}
	}
	return t
}

// Options configures a join.
type Options struct {
	Config  *config.Config
	Logger  log.Logger
	Genesis *cmttypes.GenesisDoc
	NodeKey *p2p.NodeKey
	// OnlyValidator: this node is the only genesis validator, so there is no peer to join.
	OnlyValidator bool

	State State
	// Sharded is the application if storage nodes keep its state: then Target, Stored, Whole and
	// Replace of State are not called. nil: the state is in the home.
	Sharded Sharded
	Chain   Chain
	// Executor opens the chain to execute blocks; nil: CometBFT executes them.
	Executor func(ctx context.Context) (Executor, error)
	Skip     func(transport.ID) bool // as in NetworkOptions
	Have     comet.Heights           // CometBFT's heights when the home was opened
	Sides    tcp.Sides               // as in NetworkOptions
	Dialled  func(*peers.Peers)      // as in NetworkOptions

	Metrics  *statesync.Metrics // nil: none
	View     *view.Join         // exposes the progress
	Progress func(Progress)     // never called concurrently; may be nil
	// BlocksView and BlocksProgress are the same for the blocks after the state.
	BlocksView     *catchup.View
	BlocksProgress func(catchup.Progress)
	Times          Times
}

// Allowed reports whether a node joins over the transport at all.
func Allowed(c *config.Config, onlyValidator bool) bool {
	return c.CometBFT.StateSync.Enable && c.App.Join.Fast() && !onlyValidator
}

// InBand reports whether a new node can also join by CometBFT's own state sync.
func (o Options) InBand() bool {
	return o.Sharded == nil && len(o.Config.CometBFT.StateSync.RPCServers) >= 2
}

// Decide returns the task of a start. It changes nothing.
func Decide(o Options) (Way, error) {
	way, err := decideState(o)
	if err != nil || way != None || o.Sharded != nil {
		return way, err
	}
	return decideBlocks(o)
}

// decideState is Decide without fetching blocks.
func decideState(o Options) (Way, error) {
	switch c := o.Config; {
	case o.Sharded != nil:
		return decideSharded(o)
	case !Allowed(c, o.OnlyValidator):
		return None, nil
	case o.Have.None():
		return New, nil
	case c.App.CatchUp.StateThresholdBlocks == 0 || c.App.HaltHeight > 0:
		// With halt_height, it could fetch a state beyond its last block.
		return None, nil
	case interrupted(o):
		return Finish, nil
	}
	blocks, err := o.Chain.Blocks()
	if err != nil {
		return None, err
	}
	meta := blocks.LoadBlockMeta(blocks.Height())
	if meta == nil || time.Since(meta.Header.Time) <= o.Times.orDefault().Age {
		return None, nil
	}
	return CatchUp, nil
}

// interrupted reports whether a catch-up ended after the old state was removed, and before the new
// one was recorded for CometBFT.
func interrupted(o Options) bool {
	if _, _, unfinished := o.State.Target().Unfinished(); unfinished {
		return true
	}
	meta, ok := o.State.Stored()
	if !ok {
		// Without the first blocks, the state cannot be recomputed.
		return o.Have.Base > max(o.Genesis.InitialHeight, 1)
	}
	return meta.Restored && meta.Height > o.Have.Block && meta.Height != o.Have.State
}

// Run does what Decide returned, until CometBFT can be made. Errors: ErrNoTransport and ErrTrust,
// without any change; lightblocks.ErrConflict, as ForkError; snapshot.ErrHopeless, if retrying does
// not help. After a kill at any point the next Run continues where this one was. Run must not be
// called concurrently.
func Run(ctx context.Context, way Way, o Options) error {
	if way == None {
		return nil
	}
	addresses, err := config.JoinAddresses(o.Config)
	switch {
	case err != nil:
		return err
	case len(addresses) == 0 && way == CatchUp, len(addresses) == 0 && way == Blocks:
		return nil
	case len(addresses) == 0:
		return config.Invalid(fmt.Errorf("%w: none is configured: set p2p.persistent_peers, p2p.seeds or join.peers", ErrNoTransport))
	}
	o.Times = o.Times.orDefault()
	j := &joining{Options: o, way: way, log: o.Logger.With("module", "join"), began: time.Now()}
	network := NetworkOptions{
		Config: o.Config, Logger: j.log, Genesis: o.Genesis, NodeKey: o.NodeKey, Addresses: addresses, View: o.View,
		Dialled: o.Dialled, Skip: o.Skip, Sides: o.Sides, Banned: func(_ transport.ID, why statesync.BanReason) { o.Metrics.PeerBanned(why) },
	}
	if way == Blocks {
		network.View = nil // no state is fetched
		peers, err := connectPeers(network)
		if err != nil {
			return err
		}
		defer network.disconnect(peers)
		return j.blocks(ctx, peers)
	}
	if way != New {
		network.Own = o.Chain
	}
	if j.network, err = Connect(network); err != nil {
		return err
	}
	defer j.network.Close()
	if o.Progress != nil && way != CatchUp { // CatchUp may fetch blocks instead
		o.Progress(Progress{Phase: view.PhaseLooking})
	}
	if way == CatchUp {
		err = j.catchUp(ctx)
	} else {
		o.BlocksView.StateSync()
		err = j.join(ctx)
	}
	if p, _ := o.View.Progress(); p.Phase != view.PhaseDone {
		o.View.Over() // the node continues by blocks, or not at all
	}
	if errors.Is(err, lightblocks.ErrConflict) {
		err = ForkError(o.Config, err)
	}
	if err != nil {
		return err
	}
	return j.blocks(ctx, j.network.peers)
}

// joining is a join in progress. It is used by one goroutine, except as ahead.go says.
type joining struct {
	Options
	way     Way
	log     log.Logger
	began   time.Time
	network *Network
	proved  provedHeight // as of young
	ahead   *ahead       // nil: none
}

// join is for a node without blocks, or without the state of its blocks.
func (j *joining) join(ctx context.Context) error {
	if err := j.network.Reach(ctx, j.Config.App.Join.ReachTimeout); err != nil {
		return err
	}
	if err := j.trusted(ctx); err != nil {
		return err
	}
	if j.Sharded != nil {
		return j.takeUp(ctx)
	}
	if height := j.State.Height(); height > 0 { // complete, but not recorded for CometBFT
		err := j.bootstrap(ctx, height)
		if err == nil || ctx.Err() != nil || errors.Is(err, lightblocks.ErrConflict) {
			return err
		}
		j.log.Info("The state of an interrupted join cannot be resumed: fetching the difference to a newer one", "height", height, "err", err)
	} else if young, err := j.young(ctx); young || err != nil {
		return err // if young, the node continues with block 1
	}
	return j.fetch(ctx)
}

// young reports whether the chain has not reached its first snapshot, so that only blocks lead to
// its state. It is young if a peer has the first blocks, no header above the first snapshot is
// proved, and no peer claims one or a snapshot, once all configured peers but banned ones have
// reported, or Times.Newest has passed. While a peer claims more than is proved, young waits up to
// Times.Ask and then returns false: a false claim costs a wait for a snapshot. Byzantine or slow
// peers can cause the replay of a long chain only if no other peer reports in time, and the trusted
// header is below the first snapshot. Errors: that of ctx, and lightblocks.ErrConflict.
func (j *joining) young(ctx context.Context) (bool, error) {
	interval, initial := j.State.SnapshotInterval(), max(j.Genesis.InitialHeight, 1)
	if _, _, unfinished := j.State.Target().Unfinished(); j.way != New || interval == 0 || unfinished {
		return false, nil
	}
	// The first snapshot can be fetched when two headers follow the one of its height.
	first := (initial+interval-1)/interval*interval + 2
	if j.Config.CometBFT.StateSync.TrustHeight >= first {
		return false, nil
	}
	known, stop := newClaims(j.network.peers, true, time.Now().Add(j.Times.Newest))
	defer stop()
	limited, cancel := context.WithTimeout(ctx, j.Times.Ask)
	defer cancel()
	for {
		newest, err := j.network.verifier.Newest(limited)
		switch {
		case errors.Is(err, lightblocks.ErrConflict):
			return false, err
		case err != nil:
			return false, ctx.Err()
		case newest >= first:
			j.proved = provedHeight{newest, time.Now()}
			return false, ctx.Err()
		}
		list, _, settled := known.list()
		old := slices.ContainsFunc(list, func(p catchup.Peer) bool { return p.Claim.Snapshot > 0 || p.Claim.Last >= first })
		blocks := slices.ContainsFunc(list, func(p catchup.Peer) bool {
			return p.Claim.First > 0 && p.Claim.First <= initial && p.Claim.Last > initial
		})
		if settled && blocks && !old {
			j.log.Info("The chain has no snapshot yet: joining by blocks, from the first one", "height", newest, "first_snapshot", first-2)
			return true, nil
		}
		if sleep.For(limited, newestPoll) != nil {
			return false, ctx.Err()
		}
	}
}

// catchUp fetches the parts of the state that differ if the peers are far ahead. It finds that out
// quickly, because blocks are an alternative. nil: CometBFT can be made, with the new state or with
// the old blocks.
func (j *joining) catchUp(ctx context.Context) error {
	asked, cancel := context.WithTimeout(ctx, j.Times.Ask)
	defer cancel()
	if err := j.network.Reach(asked, j.Times.Ask); err != nil {
		return ctx.Err()
	}
	height, newest := j.State.Height(), int64(0)
	far := func() bool { // if so, peers are asked for snapshots
		f := catchup.Facts{Height: height, Claims: []catchup.Claim{{First: 1, Last: newest, Snapshot: newest}}, Far: j.Config.App.CatchUp.StateThresholdBlocks}
		return catchup.Decide(f) == catchup.StateSync
	}
	for deadline := time.Now().Add(j.Times.Newest); !far(); {
		var err error
		if newest, err = j.network.verifier.Newest(asked); errors.Is(err, lightblocks.ErrConflict) {
			return err
		} else if err != nil || time.Now().After(deadline) {
			j.log.Info("The chain does not appear to be far ahead: fetching blocks", "height", height, "newest", newest, "err", err)
			return ctx.Err()
		}
		// The first proved header is our own.
		if err := sleep.For(ctx, newestPoll); err != nil {
			return err
		}
	}
	j.log.Info("The chain is far ahead: fetching the parts of the state that differ", "height", height, "newest", newest)
	j.State.Replace()
	j.BlocksView.StateSync()
	err := j.fetch(ctx)
	if errors.Is(err, snapshot.ErrNothing) {
		j.log.Info("No usable snapshot: fetching blocks", "err", err)
		return nil
	}
	return err
}

// fetch fetches a state, or the difference to the present one, and records it for CometBFT.
func (j *joining) fetch(ctx context.Context) error {
	o := restore.Options{
		Logger: j.log, Peers: j.network.peers, Headers: headers{j.network.verifier, j.proved}, Target: j.State.Target(), Interval: j.State.SnapshotInterval(),
		MemoryBytes: j.Config.App.Join.MemoryBytes, Metrics: j.Metrics, Progress: j.Progress, View: j.View,
	}
	switch j.way {
	case New:
		o.MinHeight = j.Config.CometBFT.StateSync.TrustHeight - oldSnapshots*max(o.Interval, 1)
		if j.InBand() {
			o.ChooseTimeout = j.Times.Choose
		}
	case Finish:
		// Not a snapshot below the node's former blocks: a newer one existed when the join began.
		o.MinHeight = j.Have.Block + 1
	case CatchUp: // blocks are an alternative
		o.ChooseTimeout = j.Config.App.Join.ReachTimeout
	}
	if height, v := j.State.Latest(); v != nil {
		whole, err := j.State.Whole(ctx, v)
		v.Release()
		if whole != nil {
			defer whole.Release()
		}
		if o.Local, o.LocalHeight = whole, height; ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			j.log.Error("The present state cannot be read, so all of the new one is fetched", "height", height, "err", err)
		}
	}
	o.Begun = func(height int64) { j.fetchAhead(ctx, height) }
	defer j.takeAhead(0)
	result, err := restore.Run(ctx, o)
	if err != nil {
		return err
	}
	result.Version.Release()
	return j.settle(ctx, result.Height)
}

// settle records the state for CometBFT, and retries until the headers of the state are available.
func (j *joining) settle(ctx context.Context, height int64) error {
	for try := 1; ; try++ {
		err := j.bootstrap(ctx, height)
		if err == nil || ctx.Err() != nil || try == bootstrapTries || errors.Is(hopeless(err), snapshot.ErrHopeless) {
			return err
		}
		j.log.Error("The headers of the state are missing, trying again", "height", height, "err", err)
		if err := sleep.For(ctx, bootstrapPause); err != nil {
			return err
		}
	}
}

// bootstrap records the restored state for CometBFT. CometBFT's old blocks are removed once
// everything that replaces them has been fetched.
func (j *joining) bootstrap(ctx context.Context, height int64) error {
	c := j.takeAhead(height)
	if c == nil || c.err != nil {
		c = j.stateAt(ctx, height)
	}
	if c.err != nil {
		return c.err
	}
	if err := j.sameAppHash(height, c.state); err != nil {
		return err
	}
	before, gap := comet.Ancestors(ctx, j.network.verifier, c.state, j.Config.App.Join.EvidenceHeaders, j.log)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	// The state may have been fetched long ago.
	if err := j.network.verifier.Conflict(); err != nil {
		return err
	}
	j.network.releaseOwn()
	if err := j.Chain.PutAside(j.way != New); err != nil {
		return err
	}
	return j.Chain.Bootstrap(c.state, c.commit, before, gap)
}

// sameAppHash compares the present state with the headers.
func (j *joining) sameAppHash(height int64, state sm.State) error {
	at, v := j.State.Latest()
	if v == nil {
		return fmt.Errorf("there is no state, it should have height %d", height)
	}
	defer v.Release()
	if hash := v.AppHash(); at != height || !bytes.Equal(hash[:], state.AppHash) {
		return fmt.Errorf("the state at height %d has app hash %s, but the headers have %X at height %d", at, hash, state.AppHash, height)
	}
	return nil
}
