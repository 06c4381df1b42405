package join

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/p2p"
	sm "github.com/cometbft/cometbft/state"
	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/catchup"
	"github.com/starling-kv/starling/lightblocks"
	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/fastsync"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// Progress is how far a join is.
type Progress = fastsync.Progress

// The phases of a Progress.
const (
	PhaseLooking   = fastsync.PhaseLooking
	PhaseVerifying = fastsync.PhaseVerifying
	PhaseFetching  = fastsync.PhaseFetching
	PhaseWriting   = fastsync.PhaseWriting
	PhaseDone      = fastsync.PhaseDone
)

// BootstrapTimeout is for the few headers that belong to a height.
const BootstrapTimeout = time.Minute

const (
	// oldSnapshots is how many snapshot intervals below the trusted header a new node still joins:
	// snapshots lie somewhat below it.
	oldSnapshots = 4
	// bootstrapTries limits the requests for the headers that belong to a state, and bootstrapPause
	// is the time between two.
	bootstrapTries = 10
	bootstrapPause = 2 * time.Second
	// newestPoll is the time between two checks of the newest height that is proved.
	newestPoll = 100 * time.Millisecond
)

// Way is what a start has to do over the transport.
type Way int

// The ways.
const (
	// nothing: CometBFT continues from its blocks, or joins by its own state sync
	None Way = iota
	New      // the home is empty, or has a state that an interrupted join has left
	// the last block is old: fetch what differs of the state, if the others are far ahead
	CatchUp
	Finish // a catch-up was interrupted: the state that the blocks belong to is gone
	// the last block is old, and the state is not fetched in any case: fetch blocks, if the others
	// have more
	Blocks
)

// State is the state of a node's application, which a join replaces.
type State interface {
	// Height is that of the last block; 0: there is no state.
	Height() int64
	// Latest returns the last version with a reference that the caller releases; nil: there is
	// none.
	Latest() (int64, *avlstar.Version)
	// Stored describes the state on disk.
	Stored() (meta storage.Meta, ok bool)
	// Paged reports whether parts of it are read from disk when they are needed.
	Paged() bool
	// Target is where a new state is written.
	Target() fastsync.Target
	// Replace allows the next restore to replace a state that blocks led to.
	Replace()
	// SnapshotInterval is the one of the genesis file, in blocks; 0: not known.
	SnapshotInterval() int64
}

// Chain is CometBFT's databases, while there is no CometBFT.
type Chain interface {
	Own
	// PutAside empties them and opens them again. any is false if there are none: then only the
	// remains of a PutAside that was killed are removed.
	PutAside(any bool) error
	// Bootstrap tells CometBFT that a height was reached without its blocks.
	Bootstrap(state sm.State, commit *cmttypes.Commit, before []lightblocks.Ancestor, gap comet.Gap) error
}

// Executor is the node's own chain, while there is no CometBFT.
type Executor interface {
	catchup.Chain
	Close() error
}

// Times are limits for finding out whether catching up, or joining over the transport at all, is
// worth it. 0: the default.
type Times struct {
	// Age of the last block above which a node asks how far the others are; default 5 minutes.
	Age    time.Duration
	Ask    time.Duration // to wait for a peer; default 10 seconds
	Newest time.Duration // for the peers to prove how far the chain is; default 3 seconds
	// Choose limits the search for a snapshot of a new node that has RPC servers, so that there is
	// another way; default 5 minutes.
	Choose time.Duration
}

// orDefault returns t with the defaults in place of 0.
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

// Options are what a join needs.
type Options struct {
	Config  *config.Config
	Logger  log.Logger
	Genesis *cmttypes.GenesisDoc
	NodeKey *p2p.NodeKey
	// OnlyValidator: this node is all of the genesis validators, so that there is nobody to join.
	OnlyValidator bool

	State State
	// Sharded is the application if storage nodes keep its state: then Target, Stored, Paged and
	// Replace of State are not called. nil: the state is in the home.
	Sharded Sharded
	Chain   Chain
	// Executor opens the chain, to execute blocks; nil: that is left to CometBFT.
	Executor func(ctx context.Context) (Executor, error)
	Skip     func(transport.ID) bool // that of NetworkOptions
	Have     comet.Heights           // of CometBFT, when the home was opened
	Sides    tcp.Sides               // of NetworkOptions

	Metrics  *statesync.Metrics // nil: none
	View     *fastsync.View     // what others see of it
	Progress func(Progress)     // called one call at a time; nil: nobody
	// BlocksView and BlocksProgress are the same for the blocks that follow.
	BlocksView     *catchup.View
	BlocksProgress func(catchup.Progress)
	Times          Times
}

// Allowed reports whether a node joins over the transport at all.
func Allowed(c *config.Config, onlyValidator bool) bool {
	return c.CometBFT.StateSync.Enable && c.App.Join.Fast && !onlyValidator
}

// InBand reports whether a new node can join by CometBFT's own state sync, too.
func (o Options) InBand() bool {
	return o.Sharded == nil && len(o.Config.CometBFT.StateSync.RPCServers) >= 2
}

// Decide returns what a start has to do. It changes nothing.
func Decide(o Options) (Way, error) {
	way, err := decideState(o)
	if err != nil || way != None || o.Sharded != nil {
		return way, err
	}
	return decideBlocks(o)
}

// decideState is Decide, as far as the state goes.
func decideState(o Options) (Way, error) {
	switch c := o.Config; {
	case o.Sharded != nil:
		return decideSharded(o)
	case !Allowed(c, o.OnlyValidator):
		return None, nil
	case o.Have.None():
		return New, nil
	case c.App.Join.CatchUpBlocks == 0 || c.App.HaltHeight > 0:
		// with halt_height it could fetch a state beyond its last block
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

// interrupted reports whether a catch-up ended after the old state was given up, and before
// CometBFT was told of the new one.
func interrupted(o Options) bool {
	if _, _, unfinished := o.State.Target().Unfinished(); unfinished {
		return true
	}
	meta, ok := o.State.Stored()
	if !ok {
		return o.Have.Base > 1 // without the first blocks, the state cannot be computed
	}
	return meta.Restored && meta.Height > o.Have.Block && meta.Height != o.Have.State
}

// Run does what Decide returned, until CometBFT can be made. Errors: ErrNoTransport and ErrTrust,
// and nothing was changed; lightblocks.ErrConflict, with the folder of the evidence;
// fastsync.ErrHopeless, if trying again does not help. After a kill at any point the next Run
// continues where this one was. One Run at a time.
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
		return config.Invalid(fmt.Errorf("%w: none is known: name some in p2p.persistent_peers, p2p.seeds or join.peers", ErrNoTransport))
	}
	o.Times = o.Times.orDefault()
	j := &joining{Options: o, way: way, log: o.Logger.With("module", "join")}
	network := NetworkOptions{
		Config: o.Config, Logger: j.log, Genesis: o.Genesis, NodeKey: o.NodeKey, Addresses: addresses, View: o.View,
		Skip: o.Skip, Sides: o.Sides, Banned: func(_ transport.ID, why statesync.BanReason) { o.Metrics.PeerBanned(why) },
	}
	if way == Blocks {
		network.View = nil // no state is fetched
		peers, err := connectPeers(network)
		if err != nil {
			return err
		}
		defer peers.Close()
		return j.blocks(ctx, peers, distinct(addresses))
	}
	if way != New {
		network.Own = o.Chain
	}
	if j.network, err = Connect(network); err != nil {
		return err
	}
	defer j.network.Close()
	if o.Progress != nil && way != CatchUp { // that may fetch blocks instead
		o.Progress(Progress{Phase: fastsync.PhaseLooking})
	}
	if way == CatchUp {
		err = j.catchUp(ctx)
	} else {
		o.BlocksView.Far()
		err = j.join(ctx)
	}
	if p, _ := o.View.Progress(); p.Phase != fastsync.PhaseDone {
		o.View.Over() // the node continues by blocks, or not at all
	}
	if errors.Is(err, lightblocks.ErrConflict) {
		err = errors.Join(err, fmt.Errorf("evidence is in %q: find out from the validators which chain is theirs before you join", evidenceDir(o.Config)))
	}
	if err != nil {
		return err
	}
	return j.blocks(ctx, j.network.peers, distinct(addresses))
}

// joining is a join that runs. It is used by one goroutine.
type joining struct {
	Options
	way     Way
	log     log.Logger
	network *Network
}

// join is for a node without blocks, or without the state that they belong to.
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
	if height := j.State.Height(); height > 0 { // complete, but CometBFT was not told of it
		err := j.bootstrap(ctx, height)
		if err == nil || ctx.Err() != nil || errors.Is(err, lightblocks.ErrConflict) {
			return err
		}
		j.log.Info("The state that an interrupted join has left cannot be resumed: fetching what differs from a newer one", "height", height, "err", err)
	}
	return j.fetch(ctx)
}

// catchUp fetches what differs of the state if the others are far ahead. It does not take long to
// find that out, because blocks are an alternative. nil: CometBFT can be made, with the new state
// or with the old blocks.
func (j *joining) catchUp(ctx context.Context) error {
	asked, cancel := context.WithTimeout(ctx, j.Times.Ask)
	defer cancel()
	if err := j.network.Reach(asked, j.Times.Ask); err != nil {
		return ctx.Err()
	}
	height, newest := j.State.Height(), int64(0)
	far := func() bool { // of snapshots, the peers are asked if so
		f := catchup.Facts{Height: height, Claims: []catchup.Claim{{First: 1, Last: newest, Snapshot: newest}}, Far: j.Config.App.Join.CatchUpBlocks}
		return catchup.Decide(f) == catchup.LastIrrCatchUp
	}
	for deadline := time.Now().Add(j.Times.Newest); !far(); {
		var err error
		if newest, err = j.network.verifier.Newest(asked); errors.Is(err, lightblocks.ErrConflict) {
			return err
		} else if err != nil || time.Now().After(deadline) {
			j.log.Info("The chain is not far ahead, as far as is known: fetching blocks", "height", height, "newest", newest, "err", err)
			return ctx.Err()
		}
		select { // the first header that is proved is our own
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(newestPoll):
		}
	}
	j.log.Info("The chain is far ahead: fetching what differs of the state", "height", height, "newest", newest)
	j.State.Replace()
	j.BlocksView.Far()
	err := j.fetch(ctx)
	if errors.Is(err, fastsync.ErrNothing) {
		j.log.Info("No snapshot is of use: fetching blocks", "err", err)
		return nil
	}
	return err
}

// fetch fetches a state, or what differs from the present one, and tells CometBFT.
func (j *joining) fetch(ctx context.Context) error {
	o := fastsync.Options{
		Logger: j.log, Peers: j.network.peers, Headers: headers{j.network.verifier}, Target: j.State.Target(), Interval: j.State.SnapshotInterval(),
		MemoryBytes: j.Config.App.Join.MemoryBytes, Metrics: j.Metrics, Progress: j.Progress, View: j.View,
	}
	switch j.way {
	case New:
		o.MinHeight = j.Config.CometBFT.StateSync.TrustHeight - oldSnapshots*max(o.Interval, 1)
		if j.InBand() {
			o.ChooseTimeout = j.Times.Choose
		}
	case Finish:
		// not a snapshot below the blocks that the node had: there was a newer one when it began
		o.MinHeight = j.Have.Block + 1
	case CatchUp: // blocks are an alternative
		o.ChooseTimeout = j.Config.App.Join.ReachTimeout
	}
	if height, v := j.State.Latest(); v != nil {
		defer v.Release()
		o.Local, o.LocalHeight = v, height
		if j.State.Paged() { // it reads from the zone, which the restore empties
			o.Local = nil
		}
	}
	result, err := fastsync.Join(ctx, o)
	if err != nil {
		return err
	}
	result.Version.Release()
	return j.settle(ctx, result.Height)
}

// settle tells CometBFT of the state, as often as it takes for the headers that belong to it.
func (j *joining) settle(ctx context.Context, height int64) error {
	for try := 1; ; try++ {
		err := j.bootstrap(ctx, height)
		if err == nil || ctx.Err() != nil || try == bootstrapTries || errors.Is(hopeless(err), fastsync.ErrHopeless) {
			return err
		}
		j.log.Error("The headers that belong to the state are missing, trying again", "height", height, "err", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(bootstrapPause):
		}
	}
}

// bootstrap tells CometBFT of the state that was restored. Its old blocks are put aside once
// everything that replaces them is at hand.
func (j *joining) bootstrap(ctx context.Context, height int64) error {
	limited, cancel := context.WithTimeout(ctx, BootstrapTimeout)
	defer cancel()
	verifier := j.network.verifier
	state, err := verifier.State(limited, height, j.Genesis)
	if err != nil {
		return err
	}
	commit, err := verifier.Commit(limited, height)
	if err != nil {
		return err
	}
	if err := j.sameAppHash(height, state); err != nil {
		return err
	}
	before, gap := comet.Ancestors(ctx, verifier, state, j.Config.App.Join.EvidenceHeaders, j.log)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	j.network.releaseOwn()
	if err := j.Chain.PutAside(j.way != New); err != nil {
		return err
	}
	return j.Chain.Bootstrap(state, commit, before, gap)
}

// sameAppHash compares the present state with what the headers say.
func (j *joining) sameAppHash(height int64, state sm.State) error {
	at, v := j.State.Latest()
	if v == nil {
		return fmt.Errorf("there is no state, it should be of height %d", height)
	}
	defer v.Release()
	if hash := v.AppHash(); at != height || !bytes.Equal(hash[:], state.AppHash) {
		return fmt.Errorf("the state is of height %d with app hash %s, the headers say %X at height %d", at, hash, state.AppHash, height)
	}
	return nil
}
