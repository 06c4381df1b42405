package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/client"
	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/node/config"
)

// stateSource is the part of dsm/client that a node uses.
type stateSource interface {
	app.Source
	Claims(ctx context.Context) ([]dsm.Claim, error)
	Upper(ctx context.Context, height int64, appHash avlstar.Hash, depth int) (*avlstar.Partial, error)
	Begin(height int64)
	Committed(height int64, v, base *avlstar.Version, changes []avlstar.Change) error
	Room(ctx context.Context) error
	Durable() int64
	Gone(height int64) (client.Gone, bool)
}

// ErrAway: the storage nodes no longer serve any height that this node's blocks can continue from.
var ErrAway = errors.New("this node was away for too long")

// shardedStore is the Store of a sharded node: it fetches the state from storage nodes, and sends
// them the changes of blocks.
//
//	Load ── Claims ─► takeUp: a height that all ranges have and own blocks continue from ── Upper ─► version
//	Commit ── Committed ─► updates for all replicas ── Room ─► the next block
type shardedStore struct {
	log    log.Logger
	source stateSource
	nodes  func() *config.StorageNodes
	own    ownBlocks
	joins  bool // Load has nothing to fetch: a join does
	depth  int
	life   context.Context //nolint:containedctx // ends all waits
	times  storeTimes

	last atomic.Int64 // height of the last Commit, or the result of Load

	mu struct {
		sync.Mutex
		waiting string // what Load is waiting for; "": nothing
	}
}

// storeTimes are the timeouts of Load.
type storeTimes struct {
	answers time.Duration // claims of all nodes, after the first claim of each range
	upper   time.Duration // an upper tree
	retry   time.Duration // between two attempts
	away    time.Duration // before ErrAway: another replica may have older heights
	first   time.Duration // claims, if there are no blocks
	log     time.Duration // between two log lines
}

func defaultStoreTimes() storeTimes {
	return storeTimes{
		answers: 5 * time.Second, upper: 30 * time.Second, retry: 500 * time.Millisecond, away: 15 * time.Second, first: 3 * time.Second, log: 10 * time.Second,
	}
}

// ownBlocks describes the blocks of this home.
type ownBlocks struct {
	initial int64 // height of the chain's first block
	// least and newest are the heights of the first and the last state that CometBFT can continue
	// from; newest 0: none.
	least, newest int64
	// appHash returns the app hash of a state in [least, newest], except the genesis state.
	appHash func(height int64) (avlstar.Hash, error)
}

// Load waits until the storage nodes have a state that the blocks of this home can continue from,
// and fetches its upper tree. It chooses the newest such state, because a start executes the blocks
// after it. For the genesis state it returns height 0 and nil. Errors: ErrAway; that of the context
// that ends all waits.
func (s *shardedStore) Load() (int64, *avlstar.Version, error) {
	if s.joins {
		return 0, nil, nil
	}
	if s.own.newest == 0 {
		if err := s.checkFirst(); err != nil {
			return 0, nil, err
		}
		return s.begin(0, nil)
	}
	defer s.wait("")
	below := s.own.newest // all heights above have failed
	var away, logged time.Time
	for {
		height, err := s.find(below)
		var v *avlstar.Version
		if err == nil && height < s.own.initial {
			return s.begin(0, nil)
		}
		if err == nil {
			v, err = s.upper(height)
		}
		now := time.Now()
		switch {
		case s.life.Err() != nil:
			return 0, nil, fmt.Errorf("waiting for the storage nodes: %w", s.life.Err())
		case err == nil:
			s.log.Info("Fetched the upper tree from the storage nodes", "height", height, "app_hash", v.AppHash(), "blocks_to_execute", s.own.newest-height)
			return s.begin(height, v)
		case !errors.Is(err, ErrAway):
			away = time.Time{}
		case away.IsZero():
			away = now
		case now.Sub(away) >= s.times.away:
			return 0, nil, err
		}
		if below = height - 1; below < s.own.least {
			below = s.own.newest
		}
		s.wait(err.Error())
		if now.Sub(logged) >= s.times.log {
			logged = now
			s.log.Error("Waiting for the storage nodes: blocks cannot be executed without them", "err", err)
		}
		_ = sleep.For(s.life, s.times.retry)
	}
}

// name returns a storage node with its address.
func (s *shardedStore) name(n dsm.NodeID) string { return s.nodes().Addresses[n].String() }

// begin returns the results of Load.
func (s *shardedStore) begin(height int64, v *avlstar.Version) (int64, *avlstar.Version, error) {
	s.last.Store(max(height, s.own.initial-1))
	s.source.Begin(s.last.Load())
	return height, v, nil
}

// find returns the newest height, at or below limit, that the storage nodes report.
func (s *shardedStore) find(limit int64) (int64, error) {
	ctx, cancel := context.WithTimeout(s.life, s.times.answers)
	defer cancel()
	// An error means that a range has not answered; the claims show which.
	claims, err := s.source.Claims(ctx)
	t := takeUp{ranges: s.nodes().Ranges, name: s.name, initial: s.own.initial, least: s.own.least, limit: limit, claims: claims}
	height, why := t.height()
	if why != nil && err != nil {
		why = fmt.Errorf("%w (%w)", why, err)
	}
	return height, why
}

func (s *shardedStore) upper(height int64) (*avlstar.Version, error) {
	hash, err := s.own.appHash(height)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(s.life, s.times.upper)
	defer cancel()
	p, err := s.source.Upper(ctx, height, hash, s.depth)
	if err != nil {
		return nil, fmt.Errorf("the upper tree of the state after block %d, app hash %s: %w", height, hash, err)
	}
	return p.Version(), nil
}

// checkFirst returns ErrAway if a node that begins with the first block would execute it on a state
// that no storage node has any more. It does not wait for storage nodes that do not answer at once:
// a network may start in any order.
func (s *shardedStore) checkFirst() error {
	ctx, cancel := context.WithTimeout(s.life, s.times.first)
	defer cancel()
	claims, _ := s.source.Claims(ctx) // the received claims, also with an error
	t := takeUp{ranges: s.nodes().Ranges, name: s.name, initial: s.own.initial, least: s.own.initial - 1, limit: s.own.initial - 1, claims: claims}
	if _, err := t.height(); errors.Is(err, ErrAway) {
		return err
	}
	return nil
}

// Commit implements app.Store: it hands the block's changes to the feed of the replicas. It waits
// while a range has too few replicas within the allowed lag, except when the node stops: the block
// is in CometBFT's store, from which the next start sends the updates again.
func (s *shardedStore) Commit(height int64, v, base *avlstar.Version, changes []avlstar.Change) error {
	if err := s.source.Committed(height, v, base, changes); err != nil {
		return err
	}
	s.last.Store(height)
	if err := s.source.Room(s.life); err != nil && s.life.Err() == nil {
		return err
	}
	return nil
}

// Durable implements app.Store.
func (s *shardedStore) Durable() int64 { return s.source.Durable() }

// unacknowledged returns the number of recent blocks that are not yet on the disks of enough
// replicas.
func (s *shardedStore) unacknowledged() int {
	return int(max(0, s.last.Load()-s.source.Durable()))
}

// away returns ErrAway if the state after block height, which the next block needs, has a part that
// no storage node has had for a while.
func (s *shardedStore) away(height int64) error {
	g, is := s.source.Gone(height)
	if !is || time.Since(g.Since) < s.times.away {
		return nil
	}
	return fmt.Errorf("%w: block %d needs the keys in %v as of block %d, but their storage nodes only have states from block %d on: %s",
		ErrAway, height+1, g.Range, height, g.Oldest, rejoin)
}

func (s *shardedStore) wait(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.waiting = what
}

// waiting describes what Load is waiting for; "": nothing.
func (s *shardedStore) waiting() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.waiting
}
