package lightblocks

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// newestRetry is how long Newest pauses when all peers were of no use; a new peer ends the pause.
const newestRetry = time.Second

// Newest returns the highest height that some peer has and proved: who claims more than the validators signed costs nothing. It waits for the
// first peer that proves one, and then, no longer than CompareWait, for higher ones. While all peers are of no use it goes on asking, and
// peers may be added, until ctx ends; the error then says why. The block counts as proved, not yet as compared with other peers'.
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
	ask := v.newAsker(ctx, 0)
	ask.more()
	if len(ask.known) == 0 {
		return 0, ErrNoPeers
	}
	var (
		results = make(chan answer)
		proving = map[*peer]bool{}
		best    int64
		why     reasons
		tooLate <-chan time.Time
	)
	for {
		if best > 0 && !v.anyPrompt(ask.silent) && !v.anyTrusted(proving) {
			return best, nil
		}
		if len(ask.silent) == 0 && len(proving) == 0 {
			return 0, why.explain(0, len(ask.known))
		}
		select {
		case <-ctx.Done():
			return 0, errors.Join(ctx.Err(), why.explain(0, len(ask.known)))
		case <-tooLate:
			ask.strike()
			for p := range proving {
				v.doubt(p)
			}
			return best, nil
		case <-ask.joined:
			ask.more()
		case a := <-ask.answers:
			if !ask.heard(a) {
				continue
			}
			if a.err == nil && a.lb.Height < v.opts.TrustHeight {
				a.err = fmt.Errorf("%w: its newest block is %d, below the trusted height", ErrUnavailable, a.lb.Height)
			}
			if a.err != nil {
				why.add(a.p, a.err)
				v.blame(a.p, a.err)
				continue
			}
			proving[a.p] = true
			v.spawn(func() {
				_, a.err = v.prove(ctx, a.p, a.lb)
				send(ctx, results, a)
			})
		case r := <-results:
			delete(proving, r.p)
			if errors.Is(r.err, ErrConflict) {
				return 0, r.err
			}
			if r.err != nil {
				why.add(r.p, r.err)
				v.blame(r.p, r.err)
				continue
			}
			if best == 0 {
				timer := time.NewTimer(v.opts.CompareWait)
				defer timer.Stop()
				tooLate = timer.C
			}
			best = max(best, r.lb.Height)
		}
	}
}
