package join

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/statesync/fastsync"
)

// A node whose state storage nodes keep joins by its upper tree alone:
//
//	verifier.Newest ──► N      headers up to N are proved
//	Sharded.Newest  ──► H      all storage nodes answer the state after block H ≤ N−2
//	header H+1      ──► hash   of that state
//	Sharded.TakeUp  ──► 300 KB at retain_depth 12, proved by the hash
//	bootstrap       ──► CometBFT continues with block H+1, and fetches blocks
//
// Nothing is written before the last step, so a join that was killed begins anew.

// Sharded is a node's application whose state storage nodes keep. Its methods are called by one
// goroutine.
type Sharded interface {
	// Newest returns the newest height, not above limit, of which the storage nodes of all ranges
	// say that they answer it. The error names those that the node waits for.
	Newest(ctx context.Context, limit int64) (int64, error)
	// TakeUp fetches the upper tree of the state after block height, which has this app hash, and
	// makes it the state of the application, which has none. After an error it has none either.
	TakeUp(ctx context.Context, height int64, appHash []byte) error
}

const (
	// takeUpPause is the time between two attempts.
	takeUpPause = 500 * time.Millisecond
	// takeUpTimeout limits an attempt.
	takeUpTimeout = 30 * time.Second
	// takeUpReminder is the time between two log lines about what is missing.
	takeUpReminder = 10 * time.Second
	// headersAbove is the number of headers above a height that CometBFT's state of it needs: a
	// change of validators takes effect two heights later.
	headersAbove = 2
)

// decideSharded is Decide for a node whose state storage nodes keep.
func decideSharded(o Options) (Way, error) {
	c := o.Config
	switch {
	case !o.Have.None() || !c.CometBFT.StateSync.Enable || o.OnlyValidator:
		return None, nil
	case !c.App.Join.Fast:
		return None, config.Invalid(fmt.Errorf("join.fast is false: with [state] mode = %q a node joins over the transport only", config.ModeSharded))
	}
	return New, nil
}

// takeUp takes up the newest state that can be proved, from storage nodes. It tries until ctx ends
// or trying again is of no use.
func takeUp(ctx context.Context, headers fastsync.Headers, s Sharded, logger log.Logger) (int64, error) {
	var logged time.Time
	below := int64(-1) // a height above which all attempts failed; -1: there was none
	for {
		height, err := takeUpOnce(ctx, headers, s, below)
		switch {
		case err == nil:
			return height, nil
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case errors.Is(err, fastsync.ErrHopeless):
			return 0, err
		}
		if below = height - 1; height == 0 { // no height was left: from the newest on, again
			below = -1
		}
		if now := time.Now(); logged.IsZero() || now.Sub(logged) >= takeUpReminder {
			logged = now
			logger.Error("The join waits for the storage nodes' state", "height", height, "err", err)
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(takeUpPause):
		}
	}
}

// takeUpOnce makes one attempt, at a height not above limit (-1: any). The height is 0 if the
// attempt came to none.
func takeUpOnce(ctx context.Context, headers fastsync.Headers, s Sharded, limit int64) (height int64, err error) {
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
		return 0, fmt.Errorf("the chain has %d blocks: a join needs the headers of %d after the state", newest, headersAbove)
	}
	if height, err = s.Newest(ctx, limit); err != nil {
		return 0, err
	}
	// What storage nodes say is a hint.
	if height < 1 || height > limit {
		return 0, fmt.Errorf("the storage nodes have the state after block %d, needed is one from 1 to %d", height, limit)
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

// takeUp is the join of a node whose state storage nodes keep, once the trusted header is there.
func (j *joining) takeUp(ctx context.Context) error {
	began := time.Now()
	height, err := takeUp(ctx, headers{j.network.verifier}, j.Sharded, j.log)
	if err != nil {
		return err
	}
	j.log.Info("Joining: took up the state that storage nodes keep", "height", height, "took", time.Since(began).Round(time.Millisecond))
	began = time.Now()
	if err := j.settle(ctx, height); err != nil {
		return err
	}
	j.log.Info("Joining: CometBFT continues after the state", "height", height, "took", time.Since(began).Round(time.Millisecond))
	return nil
}
