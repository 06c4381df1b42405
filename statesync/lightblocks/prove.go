package lightblocks

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/statesync/lightclient"
)

// lie wraps an ErrInvalid of package lightclient as errLie: an honest peer has only blocks of the
// chain.
func lie(err error) error {
	if errors.Is(err, lightclient.ErrInvalid) {
		return fmt.Errorf("%w: %w", errLie, err)
	}
	return err
}

// source returns the block of a height: either a block to be proved, or a block of another peer
// that is already proved.
type source func(ctx context.Context, height int64) (lb *types.LightBlock, proved bool, err error)

// climb is Rules.Climb with the verifier's clock. The error is errLie if target, or a block in
// between that was to be proved, is not on the chain.
func (v *Verifier) climb(ctx context.Context, rules lightclient.Rules, base, target *types.LightBlock, get source,
	keep func(from int64, lb *types.LightBlock),
) error {
	var failed error // error of get, which another peer's invalid response may have caused
	err := rules.Climb(base, target, v.opts.now, func(height int64) (lb *types.LightBlock, proved bool, err error) {
		lb, proved, failed = get(ctx, height)
		return lb, proved, failed
	}, keep)
	if failed != nil {
		return err
	}
	return lie(err)
}

// prove verifies a block that a peer sent, and keeps the block and the blocks in between.
func (v *Verifier) prove(ctx context.Context, p *peer, lb *types.LightBlock) (*lightclient.Proved, error) {
	switch anchor := v.opts.TrustHeight; {
	case lb.Height == anchor:
		return v.proveAnchor(p, lb)
	case lb.Height < anchor:
		return v.proveBelow(p, lb)
	}
	v.mu.Lock()
	base := v.mu.blocks.Below(lb.Height)
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
	// whether the result also depends on blocks of other peers
	shared := base.Height > v.opts.TrustHeight
	get := func(ctx context.Context, height int64) (*types.LightBlock, bool, error) {
		between, err := v.fetch(ctx, p, height)
		if err == nil || errors.Is(err, errLie) || ctx.Err() != nil {
			return between, false, err
		}
		shared = true
		// This peer does not have the block; another peer may.
		other, err := v.block(ctx, height, false)
		return other, true, err
	}
	var last *lightclient.Proved
	err := v.climb(ctx, v.rules, base.LightBlock, lb, get, func(from int64, lb *types.LightBlock) {
		v.mu.Lock()
		defer v.mu.Unlock()
		last = v.mu.blocks.Put(&lightclient.Proved{LightBlock: lb, From: from, By: string(p.id)})
	})
	switch {
	case err == nil && bytes.Equal(last.Hash(), lb.Hash()):
		return last, nil
	case err == nil || errors.Is(err, errLie) && shared:
		// Another peer has proved another block meanwhile, or the base is not on this peer's chain.
		return v.examine(ctx, p, lb)
	}
	return nil, err
}

// proveAnchor accepts the trusted block if it has the trusted hash and is signed by the validators
// that its header names.
func (v *Verifier) proveAnchor(p *peer, lb *types.LightBlock) (*lightclient.Proved, error) {
	if !bytes.Equal(lb.Hash(), v.opts.TrustHash) {
		err := fmt.Errorf("%w: peer %s has block %d with hash %X, not %X", ErrTrustMismatch, p.id, lb.Height, lb.Hash(), v.opts.TrustHash)
		v.mu.Lock()
		known := v.mu.blocks.Root() != nil
		if !known {
			v.mu.denied[p.id] = err
		}
		v.mu.Unlock()
		if known {
			return nil, fmt.Errorf("%w: %w", errLie, err)
		}
		return nil, err
	}
	if err := v.rules.Root(lb, v.opts.TrustHash); err != nil {
		return nil, lie(err)
	}
	v.mu.Lock()
	anchor := v.mu.blocks.PutRoot(&lightclient.Proved{LightBlock: lb, From: lb.Height, By: string(p.id), Compared: true})
	denied := v.mu.denied
	v.mu.denied = nil
	var liars []*peer
	for _, p := range v.mu.peers {
		if denied[p.id] != nil {
			liars = append(liars, p)
		}
	}
	v.mu.Unlock()
	// The block with the trusted hash exists, so these peers sent a false one.
	for _, p := range liars {
		v.lied(p, denied[p.id])
	}
	return anchor, nil
}

// proveBelow accepts a block below the trusted one if the header above it contains its hash.
func (v *Verifier) proveBelow(p *peer, lb *types.LightBlock) (*lightclient.Proved, error) {
	v.mu.Lock()
	above := v.mu.blocks.Get(lb.Height + 1)
	v.mu.Unlock()
	if above == nil {
		return nil, fmt.Errorf("%w: block %d is needed to prove block %d, and is not known", ErrUnavailable, lb.Height+1, lb.Height)
	}
	if err := lightclient.Below(lb.Header, above.Header); err != nil {
		return nil, lie(err)
	}
	if err := lightclient.CheckCommit(lb); err != nil {
		return nil, lie(err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mu.blocks.Put(&lightclient.Proved{LightBlock: lb, From: above.Height, By: string(p.id), Compared: true}), nil
}

// maxDescent is the maximum distance below the trusted height at which blocks are proved: each
// height costs a request.
const maxDescent = 100_000

// backwards proves the block of a height by hashes, downwards from the lowest proved block above
// it.
func (v *Verifier) backwards(ctx context.Context, height int64) (*types.LightBlock, error) {
	v.mu.Lock()
	if b := v.mu.blocks.Get(height); b != nil {
		v.mu.Unlock()
		return b.LightBlock, nil
	}
	above := v.mu.blocks.Above(height)
	v.mu.Unlock()
	if above == nil || above.Height-height > maxDescent {
		return nil, fmt.Errorf("%w: block %d is more than %d below the trusted height %d: use a lower trusted height",
			ErrUnavailable, height, maxDescent, v.opts.TrustHeight)
	}
	for h := above.Height - 1; ; h-- {
		lb, err := v.block(ctx, h, false)
		if err != nil || h == height {
			return lb, err
		}
	}
}
