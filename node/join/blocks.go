package join

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/catchup"
	"github.com/starling-kv/starling/statesync/peers"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/transport"
)

// decideBlocks is Decide for a node that never fetches a state.
func decideBlocks(o Options) (Way, error) {
	c := o.Config
	if !c.App.CatchUp.Enabled || o.OnlyValidator || o.Executor == nil || o.Have.Unbased {
		return None, nil
	}
	if o.Have.None() && c.CometBFT.StateSync.Enable { // CometBFT's own state sync
		return None, nil
	}
	addresses, err := config.JoinAddresses(c)
	if err != nil || len(addresses) == 0 {
		return None, err
	}
	states, err := o.Chain.States()
	if err != nil {
		return None, err
	}
	state, err := states.Load()
	if err != nil {
		return None, err
	}
	last := state.LastBlockTime
	if state.LastBlockHeight == 0 {
		last = o.Genesis.GenesisTime
	}
	if time.Since(last) <= o.Times.orDefault().Age {
		return None, nil
	}
	return Blocks, nil
}

// blocks fetches blocks and executes them until the peers are less than two ahead. A failure is not
// an error as long as CometBFT's block sync can continue.
func (j *joining) blocks(ctx context.Context, peers *peers.Peers) (err error) {
	if !j.Config.App.CatchUp.Enabled || j.Executor == nil || j.Sharded != nil {
		return nil
	}
	executor, err := j.Executor(ctx)
	if err != nil {
		return orCause(ctx, err)
	}
	defer func() { err = errors.Join(err, executor.Close()) }()
	// After the join of a state, the peers have had its time to answer.
	known, stop := newClaims(peers, false, j.began.Add(j.Times.Newest))
	defer stop()
	from := executor.Height()
	err = catchup.Run(ctx, catchup.Options{
		Logger: j.log, ChainID: j.Genesis.ChainID, Chain: executor, Peers: known.list, MemoryBytes: j.Config.App.Join.MemoryBytes,
		Settle: j.Times.Ask, Stall: j.Times.Stall, View: j.BlocksView, Progress: j.BlocksProgress,
		Ban: func(id transport.ID, reason string) { peers.Ban(id, statesync.BanBlock, reason) },
	})
	left := errors.Is(err, catchup.ErrStalled) || errors.Is(err, comet.ErrInvalid) || errors.Is(err, comet.ErrExtensions)
	switch {
	case err != nil && ctx.Err() == nil && left:
		j.log.Error("Cannot catch up over the transport: CometBFT's block sync continues", "height", executor.Height(), "err", err)
		return nil
	case err != nil:
		return orCause(ctx, err)
	}
	if height := executor.Height(); height > from {
		j.log.Info("Caught up by blocks over the transport", "from", from, "height", height)
	}
	return nil
}

// orCause returns the cause if ctx has ended, otherwise err.
func orCause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// claims are the connected peers, with the blocks that each last reported.
type claims struct {
	peers *peers.Peers
	all   bool      // an unreachable peer is waited for as well
	until time.Time // end of the wait for peers that do not answer

	mu struct {
		sync.Mutex
		conns   map[transport.ID]transport.Conn
		status  map[transport.ID]protocol.Status
		changed chan struct{}
	}
}

// newClaims collects claims until stop is called.
func newClaims(peers *peers.Peers, all bool, until time.Time) (c *claims, stop func()) {
	c = &claims{peers: peers, all: all, until: until}
	c.mu.conns, c.mu.status, c.mu.changed = map[transport.ID]transport.Conn{}, map[transport.ID]protocol.Status{}, make(chan struct{})
	return c, peers.Watch(c.watcher())
}

// change calls f under the lock, then wakes the waiters.
func (c *claims) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.mu.changed)
	c.mu.changed = make(chan struct{})
}

func (c *claims) watcher() peers.Watcher {
	return peers.Watcher{
		Up: func(conn transport.Conn) {
			c.change(func() { c.mu.conns[conn.Remote().ID] = conn })
		},
		Status: func(id transport.ID, s protocol.Status) { c.change(func() { c.mu.status[id] = s }) },
		Down: func(id transport.ID) {
			c.change(func() { delete(c.mu.conns, id); delete(c.mu.status, id) })
		},
	}
}

// list implements catchup.Options.Peers.
func (c *claims) list() (list []catchup.Peer, changed <-chan struct{}, settled bool) {
	awaited, down := c.peers.Awaited() // not under c.mu, which the watcher takes under Peers' lock
	c.mu.Lock()
	defer c.mu.Unlock()
	silent := 0
	for _, id := range slices.Sorted(maps.Keys(c.mu.conns)) {
		s, said := c.mu.status[id]
		if !said {
			silent++
			continue
		}
		claim := catchup.Claim{First: s.Base, Last: s.Height}
		if n := len(s.Snapshots); n > 0 {
			claim.Snapshot = s.Snapshots[n-1]
		}
		list = append(list, catchup.Peer{Conn: c.mu.conns[id], Claim: claim})
	}
	answered := silent == 0 && awaited == 0 && (down == 0 || !c.all)
	settled = len(list) > 0 && (answered || time.Now().After(c.until))
	return list, c.mu.changed, settled
}
