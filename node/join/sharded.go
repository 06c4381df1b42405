package join

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/statesync/snapshot"
)

// A sharded node joins by fetching its upper tree only:
//
//	verifier.Newest ──► N      headers up to N are proved
//	Sharded.Newest  ──► H      all storage nodes serve the state after block H ≤ N−2
//	header H+1      ──► hash   of that state
//	Sharded.TakeUp  ──► 300 KB at retain_depth 12, proved by the hash
//	bootstrap       ──► CometBFT continues with block H+1, and fetches blocks
//
// Nothing is written before the last step, so a killed join starts over.

// Sharded is the application of a sharded node. Its methods are called by one goroutine.
type Sharded interface {
	// Newest returns the newest height, at or below limit, that the storage nodes of all ranges
	// report to serve. The error names the storage nodes that it waits for.
	Newest(ctx context.Context, limit int64) (int64, error)
	// TakeUp fetches the upper tree of the state after block height, which has this app hash, and
	// makes it the state of the application, which must have none. After an error it still has
	// none.
	TakeUp(ctx context.Context, height int64, appHash []byte) error
}

const (
	// takeUpPause is the time between two attempts.
	takeUpPause = 500 * time.Millisecond
	// takeUpTimeout limits an attempt.
	takeUpTimeout = 30 * time.Second
	// takeUpReminder is the time between two log lines about missing storage nodes.
	takeUpReminder = 10 * time.Second
	// headersAbove is the number of headers above a height that CometBFT's state at that height
	// needs: a validator change takes effect two heights later.
	headersAbove = 2
)

// decideSharded is Decide for a sharded node.
func decideSharded(o Options) (Way, error) {
	c := o.Config
	switch {
	case !o.Have.None() || !c.CometBFT.StateSync.Enable || o.OnlyValidator:
		return None, nil
	case !c.App.Join.Fast():
		return None, config.Invalid(fmt.Errorf("join.mode is %q, but a node with [state] mode = %q joins over the transport only: set join.mode = %q", c.App.Join.Mode, config.ModeSharded, config.JoinFast))
	}
	return New, nil
}

// takeUp fetches the newest state that can be proved from storage nodes. It retries until ctx ends
// or retrying does not help.
func takeUp(ctx context.Context, headers snapshot.Headers, s Sharded, logger log.Logger) (int64, error) {
	var logged time.Time
	below := int64(-1) // all attempts above this height failed; -1: none
	for {
		height, err := takeUpOnce(ctx, headers, s, below)
		switch {
		case err == nil:
			return height, nil
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case errors.Is(err, snapshot.ErrHopeless):
			return 0, err
		}
		if below = height - 1; height == 0 { // no lower height is left: start again from the newest
			below = -1
		}
		if now := time.Now(); logged.IsZero() || now.Sub(logged) >= takeUpReminder {
			logged = now
			logger.Error("The join waits for the storage nodes' state", "height", height, "err", err)
		}
		if err := sleep.For(ctx, takeUpPause); err != nil {
			return 0, err
		}
	}
}

// takeUpOnce makes one attempt, at a height of at most limit (-1: no limit). height is 0 if no
// height could be tried.
func takeUpOnce(ctx context.Context, headers snapshot.Headers, s Sharded, limit int64) (height int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, takeUpTimeout)
	defer cancel()
	newest, err := headers.Newest(ctx)
	if err != nil {
		return 0, err
	}
	if limit < 0 || limit > newest-headersAbove {
		limit = newest - headersAbove
	}
	if limit < 1 {
		return 0, fmt.Errorf("the chain has %d blocks, but a join needs %d headers after the state", newest, headersAbove)
	}
	if height, err = s.Newest(ctx, limit); err != nil {
		return 0, err
	}
	// The heights that storage nodes report are unverified.
	if height < 1 || height > limit {
		return 0, fmt.Errorf("the storage nodes have the state after block %d, but a height from 1 to %d is needed", height, limit)
	}
	hash, err := headers.AppHash(ctx, height)
	if err != nil {
		return height, err
	}
	if err := s.TakeUp(ctx, height, hash); err != nil {
		return height, err
	}
	return height, hopeless(headers.Conflict()) // other peers were compared meanwhile
}

// takeUp is the join of a sharded node, once the trusted header has been fetched.
func (j *joining) takeUp(ctx context.Context) error {
	began := time.Now()
	height, err := takeUp(ctx, headers{Verifier: j.network.verifier}, j.Sharded, j.log)
	if err != nil {
		return err
	}
	j.log.Info("Joining: fetched the upper tree from the storage nodes", "height", height, "took", time.Since(began).Round(time.Millisecond))
	began = time.Now()
	if err := j.settle(ctx, height); err != nil {
		return err
	}
	j.log.Info("Joining: CometBFT continues after the state", "height", height, "took", time.Since(began).Round(time.Millisecond))
	return nil
}
