package lightblocks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cometbft/cometbft/light/provider"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/internal/hedge"
	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/statesync/lightclient"
	"github.com/starling-kv/starling/transport"
)

// How many peers are asked, and how often. See hedge.Policy for the paces.
const (
	parallel = 32 // requests in flight, not counting slow ones
	// all requests in flight; bounds memory, since a response can take MaxLightBlock bytes
	mostParallel = 64
	attempts     = 3 // attempts of one request to a busy peer
	// number of vain waits for a peer after which it is never waited for again
	patience   = 3
	retryAfter = 200 * time.Millisecond // pause before the second attempt; doubles
)

// blame excludes a peer if err proves that it is Byzantine.
func (v *Verifier) blame(p *peer, err error) {
	if errors.Is(err, errLie) {
		v.lied(p, err)
	}
}

// usablePeers returns the peers that have not been proved Byzantine.
func (v *Verifier) usablePeers() []*peer {
	v.mu.Lock()
	defer v.mu.Unlock()
	var peers []*peer
	for _, p := range v.mu.peers {
		if !p.liar {
			peers = append(peers, p)
		}
	}
	return peers
}

// doubt records that a peer sent a block other than the proved one, without proving it and without
// being proved Byzantine. It can delay callers in this manner only once.
func (v *Verifier) doubt(p *peer) {
	v.mu.Lock()
	defer v.mu.Unlock()
	p.doubtful = true
}

// question is the common part of all searches for light blocks. A search asks all peers for the
// block of one height (0: the newest), starting with those that answered their last requests in
// time. Only the goroutine of the search uses a question.
type question struct {
	v      *Verifier
	height int64
	known  map[*peer]bool // peers given to the search
	why    reasons        // why peers did not help
}

func (v *Verifier) newQuestion(height int64) *question {
	return &question{v: v, height: height, known: map[*peer]bool{}}
}

// search returns a search without Ask, which the caller sets, and with the caller's Compare and
// Linger. The search verifies responses with Verifier.prove unless the caller replaces Prove.
func (q *question) search(policy hedge.Policy) *hedge.Search[*peer, *types.LightBlock] {
	policy.Pace, policy.Start, policy.Most, policy.After = hedge.EachSlow, parallel, mostParallel, q.v.opts.hedge
	return &hedge.Search[*peer, *types.LightBlock]{
		Policy: policy,
		Go:     q.v.spawn,
		More:   q.more,
		Prove: func(ctx context.Context, p *peer, lb *types.LightBlock) error {
			_, err := q.v.prove(ctx, p, lb)
			return err
		},
		Standing: q.v.standing,
		Failed:   q.failed,
		Overdue:  q.v.overdue,
	}
}

// more returns the usable peers that the search has not been given yet, and a channel that is
// closed when a peer is added.
func (q *question) more() ([]*peer, <-chan struct{}) {
	q.v.mu.Lock()
	defer q.v.mu.Unlock()
	var peers []*peer
	for _, p := range q.v.mu.peers {
		if !p.liar && !q.known[p] {
			peers = append(peers, p)
			q.known[p] = true
		}
	}
	slices.SortStableFunc(peers, func(p, q *peer) int { return p.strikes - q.strikes })
	return peers, q.v.mu.joined
}

// failed records why a peer did not help. It never stops the search.
func (q *question) failed(p *peer, err error) (stop bool) {
	q.why.add(p, err)
	q.v.blame(p, err)
	return false
}

// standing reports whether a peer is worth waiting for: prompt applies while the peer has not
// answered, trusted while it has yet to prove a block other than the proved one.
func (v *Verifier) standing(p *peer) (prompt, trusted bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return p.strikes == 0 && p.late < patience && !p.liar, !p.doubtful && !p.liar
}

// overdue records the peers for which the search waited in vain.
func (v *Verifier) overdue(asked, proving []*peer) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, p := range asked {
		p.strikes++
		p.late++
	}
	for _, p := range proving {
		p.doubtful = true
	}
}

// fetch asks one peer for a light block. The returned block is self-consistent and has the given
// height (0: any height), but it is not verified.
func (v *Verifier) fetch(ctx context.Context, p *peer, height int64) (lb *types.LightBlock, err error) {
	err = v.ask(ctx, p, func(call context.Context) error {
		if lb, err = p.LightBlock(call, height); err != nil {
			return err
		}
		if err = lightclient.CheckBasic(lb, v.opts.ChainID, height); err != nil {
			return provider.ErrBadLightBlock{Reason: err}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return lb, nil
}

// ask sends a request to one peer, and repeats it if the peer is busy. The error is errLie if no
// honest peer would have sent the response.
func (v *Verifier) ask(ctx context.Context, p *peer, question func(context.Context) error) error {
	for try := 1; ; try++ {
		began := time.Now()
		call, cancel := context.WithTimeout(ctx, v.opts.callTimeout)
		err := lightclient.Guard(func() error { return question(call) })
		late := call.Err() != nil
		cancel()
		var bad provider.ErrBadLightBlock
		switch {
		case err == nil:
			v.answered(p, time.Since(began) <= v.opts.compareWait)
			return nil
		case errors.As(err, &bad):
			return fmt.Errorf("%w: %w", errLie, err)
		case ctx.Err() != nil:
			return ctx.Err()
		case late:
			v.answered(p, false)
			return fmt.Errorf("no answer within %v: %w", v.opts.callTimeout, err)
		case errors.Is(err, provider.ErrLightBlockNotFound), errors.Is(err, provider.ErrHeightTooHigh):
			v.answered(p, time.Since(began) <= v.opts.compareWait)
			return err
		case !errors.Is(err, provider.ErrNoResponse) || try == attempts:
			v.answered(p, false)
			return err
		}
		if err := sleep.For(ctx, retryAfter<<(try-1)); err != nil {
			return err
		}
	}
}

// reasons collects why peers did not help: the first error of each.
type reasons struct {
	first map[transport.ID]error
	order []transport.ID
}

func (r *reasons) add(p *peer, err error) {
	if r.first == nil {
		r.first = map[transport.ID]error{}
	}
	if r.first[p.id] == nil {
		r.first[p.id] = err
		r.order = append(r.order, p.id)
	}
}

// reasonsShown is the maximum number of peers whose reasons an error quotes.
const reasonsShown = 5

// explain returns an error that names the missing block and the reasons. It matches ErrUnavailable
// and the sentinels of its causes. height 0 is the newest block.
func (r *reasons) explain(height int64, asked int) error {
	var missing int
	var text []string
	causes := []error{ErrUnavailable}
	slices.Sort(r.order)
	for _, id := range r.order {
		err := r.first[id]
		if errors.Is(err, provider.ErrLightBlockNotFound) || errors.Is(err, provider.ErrHeightTooHigh) {
			missing++
			continue
		}
		for _, sentinel := range []error{ErrTrustMismatch, ErrTrustExpired, ErrFuture, ErrConflict} {
			if errors.Is(err, sentinel) && !slices.Contains(causes, sentinel) {
				causes = append(causes, sentinel)
			}
		}
		if len(text) < reasonsShown {
			text = append(text, fmt.Sprintf("%s: %v", id, err))
		}
	}
	block := fmt.Sprintf("light block %d", height)
	if height == 0 {
		block = "newest light block"
	}
	text = append([]string{fmt.Sprintf("%s: %d asked, %d without it (pruned, or not yet made)", block, asked, missing)}, text...)
	if shown := len(text) - 1; shown < len(r.order)-missing {
		text = append(text, fmt.Sprintf("and %d more", len(r.order)-missing-shown))
	}
	return explained{strings.Join(text, "; "), causes}
}

// explained is an error with its own text that matches several sentinels.
type explained struct {
	text   string
	causes []error
}

func (e explained) Error() string   { return e.text }
func (e explained) Unwrap() []error { return e.causes }
