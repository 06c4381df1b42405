package lightblocks

import (
	"context"
	"errors"
	"fmt"

	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/internal/hedge"
)

// flight is the search for the block of one height, shared by concurrent callers.
//
//	all peers ──fetch──► answers ──by hash──► prove (one per hash, another after Options.hedge) ──► block
//	                        └── afterwards an equal hash agrees; another hash is examined: errLie or ErrConflict
//
// golang.org/x/sync/singleflight does not fit: a flight ends when its last caller leaves, it
// returns the block before its comparisons are done, and a conflict found by another flight ends
// it.
type flight struct {
	height  int64
	compare bool
	waiters int // callers that wait for done; guarded by Verifier.mu
	cancel  context.CancelFunc
	done    chan struct{} // closed when block and err are set
	block   *types.LightBlock
	err     error
}

// block returns the proved block of a height that is at or above the trusted height, or directly
// below a proved block. With compare, the block is also compared with the other peers' blocks.
func (v *Verifier) block(ctx context.Context, height int64, compare bool) (*types.LightBlock, error) {
	for {
		v.mu.Lock()
		if err := v.usable(); err != nil {
			v.mu.Unlock()
			return nil, err
		}
		if b := v.mu.blocks.Get(height); b != nil && (b.Compared || !compare) {
			v.mu.Unlock()
			return b.LightBlock, nil
		}
		f := v.mu.flights[height]
		if f == nil {
			under, cancel := context.WithCancel(v.ctx)
			f = &flight{height: height, compare: compare, cancel: cancel, done: make(chan struct{})}
			v.mu.flights[height] = f
			v.wg.Add(1) // like spawn, which would lock mu again
			go func() {
				defer v.wg.Done()
				defer cancel()
				v.fly(under, f)
			}()
		}
		f.waiters++
		v.mu.Unlock()

		err := wait(ctx, f.done)
		v.mu.Lock()
		if f.waiters--; f.waiters == 0 && err != nil {
			f.cancel()
			if v.mu.flights[height] == f {
				delete(v.mu.flights, height)
			}
		}
		v.mu.Unlock()
		switch {
		case err != nil:
			return nil, fmt.Errorf("light block %d: %w", height, err)
		case f.err != nil:
			return nil, f.err
		case !compare || f.compare:
			return f.block, nil
		}
	}
}

// wait waits for done, or returns the error of ctx if that ends first.
func wait(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// usable returns nil, or the reason that nothing can be proved any more. mu must be held.
func (v *Verifier) usable() error {
	if v.mu.closed {
		return ErrClosed
	}
	return v.mu.conflict
}

// finish sets the result of a flight, unless it is set already, and wakes the waiting callers. The
// flight may continue to compare responses. It locks mu.
func (v *Verifier) finish(f *flight, block *types.LightBlock, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	select {
	case <-f.done:
		return
	default:
	}
	if v.mu.conflict != nil {
		block, err = nil, v.mu.conflict
	}
	if err == nil && f.compare {
		if b := v.mu.blocks.Get(f.height); b != nil {
			b.Compared = true
		}
	}
	f.block, f.err = block, err
	if v.mu.flights[f.height] == f {
		delete(v.mu.flights, f.height)
	}
	close(f.done)
}

// fly searches for the block, and finishes the flight as soon as the block is proved and compared.
// Responses that arrive later are still compared.
func (v *Verifier) fly(ctx context.Context, f *flight) {
	q := v.newQuestion(f.height)
	var won *types.LightBlock
	var conflict error
	s := q.search(hedge.Policy{Linger: true})
	if f.compare {
		s.Policy.Compare = v.opts.compareWait
	}
	v.mu.Lock()
	if b := v.mu.blocks.Get(f.height); b != nil {
		won, s.Known = b.LightBlock, string(b.Hash()) // proved already: only compare it
	}
	v.mu.Unlock()
	s.More = func() ([]*peer, <-chan struct{}) {
		if won != nil && len(q.known) > 0 {
			return nil, nil
		}
		return q.more()
	}
	s.Ask = func(ctx context.Context, p *peer) (*types.LightBlock, error) { return v.fetch(ctx, p, f.height) }
	s.Key = func(lb *types.LightBlock) string { return string(lb.Hash()) }
	s.Refuted = func(p *peer, err error) bool {
		if errors.Is(err, ErrConflict) {
			conflict = err
			return true
		}
		if won != nil {
			v.doubt(p)
		}
		return q.failed(p, err)
	}
	s.Proved = func(_ *peer, lb *types.LightBlock) {
		if won == nil {
			won = lb
		}
	}
	s.Settled = func() { v.finish(f, won, nil) }
	err := s.Run(ctx)
	switch {
	case err != nil:
		err = fmt.Errorf("light block %d: %w", f.height, ErrClosed)
	case conflict != nil:
		err = conflict
	case len(q.known) == 0:
		err = fmt.Errorf("light block %d: %w", f.height, ErrNoPeers)
	case won == nil:
		err = q.why.explain(f.height, len(q.known))
	}
	v.finish(f, won, err) // no effect if it was settled
}
