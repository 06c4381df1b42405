package shard

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm/storagenode"
	"github.com/starling-kv/starling/node/config"
)

const (
	// fromGenesis is up to which height of the chain a range begins with the genesis state:
	// validators that have waited for storage nodes since then have all updates. Where they have
	// not, the range is taken over later.
	fromGenesis = 1000
	// stuckAfter is the time after which a range whose update nobody sends is taken over. That
	// gives up the heights that it has, which all others may need after a failure of many machines:
	// so validators get the time to start again first.
	stuckAfter = 5 * time.Minute
	// againAfter is the time between two attempts to take a range over.
	againAfter = 5 * time.Second
)

// finalError is one that no time resolves.
type finalError struct{ error }

func (e finalError) Unwrap() error { return e.error }

func isFinal(err error) bool { return errors.As(err, new(finalError)) }

// tend creates the ranges that have no state, and takes over those that cannot continue.
func (n *Node) tend(ctx context.Context, v verifier) error {
	var errs []error
	for _, p := range n.places {
		if err := n.tendPlace(ctx, p, v); err != nil {
			errs = append(errs, fmt.Errorf("range %s: %w", p, err))
		}
	}
	return errors.Join(errs...)
}

func (n *Node) tendPlace(ctx context.Context, p *place, v verifier) error {
	if p.taken.Load() {
		return nil
	}
	now := time.Now()
	if p.replica == nil {
		if now.Before(p.tryFrom) {
			return nil
		}
		newest := n.newest(ctx)
		if newest == 0 {
			return nil // nobody has answered yet
		}
		if newest-n.genesis.InitialHeight < n.young {
			return n.createFromGenesis(p)
		}
		n.take(ctx, p, v, -1)
		return nil
	}
	height, waits := p.replica.Newest()
	_, moved := n.headers.AppHash(height + 1)
	if height != p.height {
		p.leave(nil) // it follows: what an attempt to take it over has fetched is not needed
	}
	if height != p.height || waits || !moved {
		p.height, p.since = height, now
		return nil
	}
	if now.Sub(p.since) >= stuckAfter && !now.Before(p.tryFrom) {
		n.take(ctx, p, v, height)
	}
	return nil
}

// take begins to take a range over, beside the headers that other ranges need.
func (n *Node) take(ctx context.Context, p *place, v verifier, above int64) {
	p.taken.Store(true)
	n.taking.Go(func() {
		defer p.taken.Store(false)
		err := n.takeOver(ctx, p, v, above)
		p.tryFrom = time.Now().Add(againAfter)
		switch {
		case err == nil, ctx.Err() != nil:
		case isFinal(err):
			n.fail(err)
		case time.Since(p.warned) >= repeatAfter:
			p.warned = time.Now()
			text := "The range cannot be fetched at present"
			if above >= 0 {
				text = "Nobody sends the update that this range needs, and the range cannot be fetched at a newer height: do validators run with state.mode = \"sharded\", and is this node in their file of ranges?"
			}
			n.log.Error(text, "range", p.String(), "needs", above+1, "err", err)
		}
	})
}

// genesisState returns the state before the first block. The caller releases it.
func genesisState(doc *cmttypes.GenesisDoc) (*avlstar.Version, error) {
	v, err := app.GenesisState(config.InitChainRequest(doc))
	return v, config.Invalid(err)
}

// createFromGenesis makes the first state of a range from the genesis file. Its app hash is
// compared with the first header's as soon as that is proved.
func (n *Node) createFromGenesis(p *place) error {
	v, err := genesisState(n.genesis)
	if err != nil {
		return finalError{err}
	}
	defer v.Release()
	seam, err := v.Seam(p.keys)
	if err != nil {
		return err
	}
	leaves := func(yield func(avlstar.Leaf, error) bool) {
		for l, err := range v.Leaves() {
			if (err != nil || p.keys.Contains(l.Key)) && !yield(l, err) {
				return
			}
		}
	}
	info := storagenode.StateInfo{Height: n.genesis.InitialHeight - 1, Commitment: v.Commitment(), Seam: seam}
	err = n.create(p, info.Height, func(o storagenode.Options) error { return storagenode.Create(o, info, leaves) })
	if err != nil {
		return err
	}
	n.log.Info("Created a range from the genesis file", "range", p.String(), "app_hash", v.AppHash())
	return nil
}

// create makes a range's first state here, which write stores, in place of what it has, and opens
// it.
func (n *Node) create(p *place, height int64, write func(storagenode.Options) error) error {
	next := p.dir + nextSuffix
	if err := os.RemoveAll(next); err != nil {
		return finalError{err}
	}
	o, err := n.replicaOptions(p, next)
	if err != nil {
		return finalError{err}
	}
	if err := errors.Join(write(o), o.Disk.Close()); err != nil {
		return finalError{err}
	}
	p.leave(nil)
	n.mu.Lock()
	old := p.replica
	p.replica = nil
	n.mu.Unlock()
	if old != nil {
		if err := old.Close(); err != nil {
			return finalError{err}
		}
	}
	if err := replace(p.dir); err != nil {
		return finalError{err}
	}
	if err := n.openPlace(p); err != nil {
		return finalError{err}
	}
	if err := n.changed(); err != nil {
		return finalError{err}
	}
	p.height, p.since = height, time.Now()
	return nil
}
