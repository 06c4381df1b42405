package lightblocks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/internal/hedge"
)

// newestRetry is the pause of Newest after no peer helped. A new peer ends the pause.
const newestRetry = time.Second

// Newest returns the highest height whose block some peer has proved. Claims of heights that the
// validators never signed do not delay it. It waits for the first peer that proves a block, and
// then at most one second (Options.compareWait) for higher blocks. While no peer helps, it keeps
// asking until ctx ends, and then returns the reasons; peers may be added meanwhile. The block is
// proved, but not yet compared with other peers' blocks.
func (v *Verifier) Newest(ctx context.Context) (int64, error) {
	var because error
	for {
		v.mu.Lock()
		joined, err := v.mu.joined, v.usable()
		v.mu.Unlock()
		if err != nil {
			return 0, err
		}
		height, err := v.newest(ctx)
		if err == nil {
			return height, nil
		}
		if errors.Is(err, ErrConflict) || errors.Is(err, ErrTrustExpired) || errors.Is(err, ErrClosed) {
			return 0, err
		}
		if because == nil || ctx.Err() == nil {
			because = err
		}
		pause := time.NewTimer(newestRetry)
		select {
		case <-joined:
		case <-pause.C:
		case <-v.ctx.Done():
		case <-ctx.Done():
			pause.Stop()
			return 0, fmt.Errorf("newest light block: %w: %w", ctx.Err(), because)
		}
		pause.Stop()
	}
}

func (v *Verifier) newest(ctx context.Context) (int64, error) {
	if _, err := v.block(ctx, v.opts.TrustHeight, false); err != nil {
		return 0, fmt.Errorf("trusted header: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(v.ctx, cancel)()
	q := v.newQuestion(0)
	s := q.search(hedge.Policy{Compare: v.opts.compareWait})
	s.Ask = func(ctx context.Context, p *peer) (*types.LightBlock, error) {
		lb, err := v.fetch(ctx, p, 0)
		if err == nil && lb.Height < v.opts.TrustHeight {
			err = fmt.Errorf("%w: its newest block is %d, below the trusted height", ErrUnavailable, lb.Height)
		}
		return lb, err
	}
	var best int64
	s.Proved = func(_ *peer, lb *types.LightBlock) { best = max(best, lb.Height) }
	var conflict error
	s.Refuted = func(p *peer, err error) bool {
		if errors.Is(err, ErrConflict) {
			conflict = err
			return true
		}
		return q.failed(p, err)
	}
	err := s.Run(ctx)
	switch {
	case err != nil:
		return 0, errors.Join(err, q.why.explain(0, len(q.known)))
	case conflict != nil:
		return 0, conflict
	case len(q.known) == 0:
		return 0, ErrNoPeers
	case best == 0:
		return 0, q.why.explain(0, len(q.known))
	}
	return best, nil
}
