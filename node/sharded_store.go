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
	"github.com/starling-kv/starling/dsm/source"
)

// stateSource is what a node uses of dsm/source.
type stateSource interface {
	app.Source
	Claims(ctx context.Context) ([]dsm.Claim, error)
	Upper(ctx context.Context, height int64, appHash avlstar.Hash, depth int) (*avlstar.Partial, error)
	Begin(height int64)
	Committed(height int64, v, base *avlstar.Version, changes []avlstar.Change) error
	Room(ctx context.Context) error
	Durable() int64
	Gone(height int64) (source.Gone, bool)
}

// ErrAway: the storage nodes no longer answer any height that this node's blocks lead to.
var ErrAway = errors.New("this node was away for too long")

// shardedStore is the Store of a node whose state storage nodes keep: it takes up what they have,
// and hands them what blocks change.
//
//	Load ── Claims ─► takeUp: a height that all ranges have, and own blocks lead on from ── Upper ─► version
//	Commit ── Committed ─► updates for all replicas ── Room ─► the next block
type shardedStore struct {
	log    log.Logger
	source stateSource
	ranges *dsm.Ranges
	name   func(dsm.Node) string // with the address
	own    ownBlocks
	joins  bool // Load has nothing to take up: a join does so
	depth  int
	life   context.Context //nolint:containedctx // ends all waiting
	times  storeTimes

	last atomic.Int64 // of Commit, or what Load returned

	mu struct {
		sync.Mutex
		waiting string // what Load waits for; "": nothing
	}
}

// storeTimes are how long Load waits for what.
type storeTimes struct {
	answers time.Duration // for the claims of all nodes, after the first of each range
	upper   time.Duration // for an upper tree
	retry   time.Duration // between two attempts
	away    time.Duration // before ErrAway: another replica may have older heights
	first   time.Duration // for claims, where there are no blocks
	log     time.Duration // between two log lines
}

func defaultStoreTimes() storeTimes {
	return storeTimes{
		answers: 5 * time.Second, upper: 30 * time.Second, retry: 500 * time.Millisecond, away: 15 * time.Second, first: 3 * time.Second, log: 10 * time.Second,
	}
}

// ownBlocks are the blocks of this home.
type ownBlocks struct {
	initial int64 // height of the chain's first block
	// least and newest are the heights of the first and the last state from which CometBFT can
	// continue; newest 0: it has nothing.
	least, newest int64
	// appHash returns the app hash of a state in [least, newest], but for that of genesis.
	appHash func(height int64) (avlstar.Hash, error)
}

// Load waits until the storage nodes have a state that the blocks of this home lead on from, and
// takes up its upper tree: the newest one, since a start executes the blocks after it. It returns
// height 0 and nil where that is the genesis state. Errors: ErrAway; that of the context that ends
// all waiting.
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
	below := s.own.newest // heights above have failed
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
			s.log.Info("Took up the state from the storage nodes", "height", height, "app_hash", v.AppHash(), "blocks_to_execute", s.own.newest-height)
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
			s.log.Error("The node waits for the storage nodes: nothing can be executed without them", "err", err)
		}
		sleep(s.life, s.times.retry)
	}
}

// begin returns what Load returns.
func (s *shardedStore) begin(height int64, v *avlstar.Version) (int64, *avlstar.Version, error) {
	s.last.Store(max(height, s.own.initial-1))
	s.source.Begin(s.last.Load())
	return height, v, nil
}

// find returns the newest height, not above limit, that the storage nodes say they have.
func (s *shardedStore) find(limit int64) (int64, error) {
	ctx, cancel := context.WithTimeout(s.life, s.times.answers)
	defer cancel()
	// An error says that some range has not answered, and which ones follows from the claims, too.
	claims, err := s.source.Claims(ctx)
	t := takeUp{ranges: s.ranges, name: s.name, initial: s.own.initial, least: s.own.least, limit: limit, claims: claims}
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
// that nobody has any more. Storage nodes that do not answer at once are no reason to wait: a
// network may start in any order.
func (s *shardedStore) checkFirst() error {
	ctx, cancel := context.WithTimeout(s.life, s.times.first)
	defer cancel()
	claims, _ := s.source.Claims(ctx) // those that came, whatever the error says of the others
	t := takeUp{ranges: s.ranges, name: s.name, initial: s.own.initial, least: s.own.initial - 1, limit: s.own.initial - 1, claims: claims}
	if _, err := t.height(); errors.Is(err, ErrAway) {
		return err
	}
	return nil
}

// Commit implements app.Store: the changes of the block are the replicas' business from now on. It
// waits while some range has too few replicas within the lag that is allowed, but not when the node
// stops: the block is in CometBFT's store, from which a start brings the updates again.
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

// unacknowledged returns the number of last blocks that are not on the disks of enough replicas.
func (s *shardedStore) unacknowledged() int {
	return int(max(0, s.last.Load()-s.source.Durable()))
}

// away returns ErrAway if the state after block height, on which the next one is executed, has a
// part that has been nowhere for a while.
func (s *shardedStore) away(height int64) error {
	g, is := s.source.Gone(height)
	if !is || time.Since(g.Since) < s.times.away {
		return nil
	}
	return fmt.Errorf("%w: block %d needs keys in %v as they were after block %d, and all storage nodes of these have the states after blocks from %d on only: %s",
		ErrAway, height+1, g.Range, height, g.Oldest, rejoin)
}

func (s *shardedStore) wait(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.waiting = what
}

// waiting returns what Load waits for; "": nothing.
func (s *shardedStore) waiting() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.waiting
}

// sleep waits, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
