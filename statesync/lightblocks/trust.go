package lightblocks

import (
	"context"
	"errors"
	"fmt"

	"github.com/cometbft/cometbft/light/provider"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/internal/hedge"
	"github.com/starling-kv/starling/transport"
)

// Trusted asks every peer once for the trusted block, and returns the first valid response. It
// calls denied for each peer that responds without the block or with another block at that height,
// but not for a silent peer. All calls of denied are made by one goroutine, before Trusted returns.
// Errors: ErrTrustExpired if the block is too old to prove anything from, ErrUnavailable,
// ErrNoPeers, ErrClosed, or the error of ctx.
func (v *Verifier) Trusted(ctx context.Context, denied func(id transport.ID, why error)) (*types.LightBlock, error) {
	v.mu.Lock()
	err, root := v.usable(), v.mu.blocks.Root()
	v.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case root != nil:
		return root.LightBlock, v.rules.Fresh(root.LightBlock, v.opts.now())
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(v.ctx, cancel)()
	q := v.newQuestion(v.opts.TrustHeight)
	s := q.search(hedge.Policy{})
	s.Ask = func(ctx context.Context, p *peer) (*types.LightBlock, error) { return v.fetch(ctx, p, q.height) }
	s.Failed = func(p *peer, err error) bool {
		if isAnswer(err) {
			denied(p.id, err)
		}
		return q.failed(p, err)
	}
	s.Refuted = s.Failed
	var won *types.LightBlock
	s.Proved = func(_ *peer, lb *types.LightBlock) { won = lb }
	switch err := s.Run(ctx); {
	case won != nil:
		return won, v.rules.Fresh(won, v.opts.now())
	case err != nil && v.ctx.Err() != nil:
		return nil, ErrClosed
	case err != nil:
		return nil, fmt.Errorf("trusted header: %w", err)
	case len(q.known) == 0:
		return nil, ErrNoPeers
	}
	return nil, fmt.Errorf("trusted header: %w", q.why.explain(q.height, len(q.known)))
}

// isAnswer reports whether an error is a peer's response, as opposed to silence.
func isAnswer(err error) bool {
	for _, said := range []error{provider.ErrLightBlockNotFound, provider.ErrHeightTooHigh, ErrTrustMismatch, errLie} {
		if errors.Is(err, said) {
			return true
		}
	}
	return false
}
