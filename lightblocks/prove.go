package lightblocks

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/cometbft/cometbft/light"
	"github.com/cometbft/cometbft/types"
)

// errGap: the validators have changed too much since the trusted block; one between is needed.
var errGap = errors.New("too few of the trusted validators signed")

// verify checks next against a proved block below it, and that no signature of its commit is wrong. errGap, ErrTrustExpired and ErrFuture
// blame nobody; an error that is errLie says that next is no block of the chain that base belongs to.
func (v *Verifier) verify(base, next *types.LightBlock) error {
	if err := v.follows(base, next); err != nil {
		return err
	}
	return checkCommit(next)
}

func (v *Verifier) follows(base, next *types.LightBlock) error {
	now := v.opts.Now()
	if light.HeaderExpired(base.SignedHeader, v.opts.TrustPeriod, now) {
		return fmt.Errorf("%w: block %d is of %v, the period is %v: name a newer trusted height and hash",
			ErrTrustExpired, base.Height, base.Time, v.opts.TrustPeriod)
	}
	if latest := now.Add(v.opts.MaxClockDrift); !next.Time.Before(latest) {
		return fmt.Errorf("%w: block %d is of %v, the clock here says %v", ErrFuture, next.Height, next.Time, now)
	}
	err := guard(func() error {
		return light.Verify(base.SignedHeader, base.ValidatorSet, next.SignedHeader, next.ValidatorSet,
			v.opts.TrustPeriod, now, v.opts.MaxClockDrift, v.opts.TrustLevel)
	})
	var gap light.ErrNewValSetCantBeTrusted
	if errors.As(err, &gap) {
		return fmt.Errorf("from %d to %d: %w", base.Height, next.Height, errGap)
	}
	if err != nil {
		return fmt.Errorf("%w: block %d (%X) does not follow from block %d (%X): %w",
			errLie, next.Height, next.Hash(), base.Height, base.Hash(), err)
	}
	return nil
}

// checkCommit checks all signatures. A commit with 2/3 right ones and a wrong one proves its block, but the node that starts from it panics; no
// honest node has one, since it checks each vote and each commit in full.
func checkCommit(lb *types.LightBlock) error {
	err := guard(func() error {
		return types.VerifyCommit(lb.ChainID, lb.ValidatorSet, lb.Commit.BlockID, lb.Height, lb.Commit)
	})
	if err != nil {
		return fmt.Errorf("%w: commit of block %d: %w", errLie, lb.Height, err)
	}
	return nil
}

// source gives the block of a height, not proved, or, where it has none, a proved one of somebody else.
type source func(ctx context.Context, height int64) (lb *types.LightBlock, sure bool, err error)

// forward proves target from base (lower), fetching blocks between where the validators have changed too much. check is what a step must pass.
// It tells each, in ascending order, to keep; target comes last. Between two steps at most 63 are fetched, since each halves the gap,
// and each step is a true block of the chain or an attack, so whoever lies cannot make it long.
func forward(ctx context.Context, base, target *types.LightBlock, get source, check func(base, next *types.LightBlock) error,
	keep func(from int64, lb *types.LightBlock),
) error {
	for wanted := []*types.LightBlock{target}; len(wanted) > 0; {
		if err := ctx.Err(); err != nil {
			return err
		}
		next := wanted[len(wanted)-1] // the lowest
		err := check(base, next)
		if err == nil {
			keep(base.Height, next)
			base, wanted = next, wanted[:len(wanted)-1]
			continue
		}
		if !errors.Is(err, errGap) {
			return err
		}
		pivot := base.Height + (next.Height-base.Height)/2
		lb, sure, err := get(ctx, pivot)
		switch {
		case err != nil:
			return fmt.Errorf("block %d, between %d and %d: %w", pivot, base.Height, next.Height, err)
		case sure:
			base = lb
		default:
			wanted = append(wanted, lb)
		}
	}
	return nil
}

// prove verifies what a peer gave and keeps it, with all that it took to get there.
func (v *Verifier) prove(ctx context.Context, p *peer, lb *types.LightBlock) (*proved, error) {
	switch anchor := v.opts.TrustHeight; {
	case lb.Height == anchor:
		return v.proveAnchor(p, lb)
	case lb.Height < anchor:
		return v.proveBelow(p, lb)
	}
	v.mu.Lock()
	base := v.mu.blocks.below(lb.Height)
	v.mu.Unlock()
	if base == nil || base.Height < v.opts.TrustHeight {
		return nil, fmt.Errorf("%w: there is no block to prove %d from", ErrUnavailable, lb.Height)
	}
	if base.Height == lb.Height {
		if bytes.Equal(base.Hash(), lb.Hash()) {
			return base, nil
		}
		return v.examine(ctx, p, lb)
	}
	shared := base.Height > v.opts.TrustHeight // whether anything of what this peer is judged by came from others
	get := func(ctx context.Context, height int64) (*types.LightBlock, bool, error) {
		between, err := v.fetch(ctx, p, height)
		if err == nil || errors.Is(err, errLie) || ctx.Err() != nil {
			return between, false, err
		}
		shared = true
		other, err := v.block(ctx, height, false) // this peer has it not, somebody may
		return other, true, err
	}
	var last *proved
	err := forward(ctx, base.LightBlock, lb, get, v.verify, func(from int64, lb *types.LightBlock) {
		v.mu.Lock()
		defer v.mu.Unlock()
		last = v.mu.blocks.put(&proved{LightBlock: lb, from: from, by: p.id})
	})
	switch {
	case err == nil && bytes.Equal(last.Hash(), lb.Hash()):
		return last, nil
	case err == nil || errors.Is(err, errLie) && shared:
		// Somebody else proved another block meanwhile, or what is below is not of this peer's chain: who is right?
		return v.examine(ctx, p, lb)
	}
	return nil, err
}

// proveAnchor takes the trusted block. Its hash names it; its validators are those that the header names, and must have signed it.
func (v *Verifier) proveAnchor(p *peer, lb *types.LightBlock) (*proved, error) {
	if !bytes.Equal(lb.Hash(), v.opts.TrustHash) {
		err := fmt.Errorf("%w: peer %s has block %d with hash %X, not %X", ErrTrustMismatch, p.id, lb.Height, lb.Hash(), v.opts.TrustHash)
		v.mu.Lock()
		known := v.mu.blocks.anchor != nil
		if !known {
			v.mu.denied[p.id] = err
		}
		v.mu.Unlock()
		if known {
			return nil, fmt.Errorf("%w: %w", errLie, err)
		}
		return nil, err
	}
	if err := checkCommit(lb); err != nil {
		return nil, err
	}
	v.mu.Lock()
	if v.mu.blocks.anchor == nil {
		v.mu.blocks.anchor = &proved{LightBlock: lb, from: lb.Height, by: p.id, compared: true}
		v.mu.blocks.put(v.mu.blocks.anchor)
	}
	anchor, denied := v.mu.blocks.anchor, v.mu.denied
	v.mu.denied = nil
	var liars []*peer
	for _, p := range v.mu.peers {
		if denied[p.id] != nil {
			liars = append(liars, p)
		}
	}
	v.mu.Unlock()
	for _, p := range liars { // the trusted hash is of a block that exists, so it is they who are wrong
		v.lied(p, denied[p.id])
	}
	return anchor, nil
}

// proveBelow takes a block under the trusted one by its hash, which the header above it names.
func (v *Verifier) proveBelow(p *peer, lb *types.LightBlock) (*proved, error) {
	v.mu.Lock()
	above := v.mu.blocks.get(lb.Height + 1)
	v.mu.Unlock()
	if above == nil {
		return nil, fmt.Errorf("%w: block %d is not at hand to prove %d by", ErrUnavailable, lb.Height+1, lb.Height)
	}
	if err := guard(func() error { return light.VerifyBackwards(lb.Header, above.Header) }); err != nil {
		return nil, fmt.Errorf("%w: block %d (%X) is not below block %d: %w", errLie, lb.Height, lb.Hash(), above.Height, err)
	}
	if err := checkCommit(lb); err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mu.blocks.put(&proved{LightBlock: lb, from: above.Height, by: p.id, compared: true}), nil
}

// maxDescent is how far below the trusted height one can go: each height costs a question.
const maxDescent = 100_000

// backwards goes down from the lowest proved block above height.
func (v *Verifier) backwards(ctx context.Context, height int64) (*types.LightBlock, error) {
	v.mu.Lock()
	if b := v.mu.blocks.get(height); b != nil {
		v.mu.Unlock()
		return b.LightBlock, nil
	}
	above := v.mu.blocks.above(height)
	v.mu.Unlock()
	if above == nil || above.Height-height > maxDescent {
		return nil, fmt.Errorf("%w: block %d is more than %d below the trusted height %d: name a lower one",
			ErrUnavailable, height, maxDescent, v.opts.TrustHeight)
	}
	for h := above.Height - 1; ; h-- {
		lb, err := v.block(ctx, h, false)
		if err != nil || h == height {
			return lb, err
		}
	}
}
