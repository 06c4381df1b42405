package lightblocks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cometbft/cometbft/light/provider"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/transport"
)

// flight is the search for the block of one height; all who want it wait for the same.
//
//	all peers ──fetch──► answers ──by hash──► prove (one at a time per hash, a second after Hedge) ──► block
//	                        └──── afterwards: the same hash agrees, another one is examined: a lie, or ErrConflict
type flight struct {
	height  int64
	compare bool
	waiters int // guarded by Verifier.mu
	cancel  context.CancelFunc
	done    chan struct{} // closed when block and err are set
	block   *types.LightBlock
	err     error
}

const (
	parallel     = 32 // questions under way, not counting those that take longer than Hedge
	mostParallel = 64 // all questions under way, which bounds memory: MaxLightBlock each
	attempts     = 3  // questions to a peer that is busy
	patience     = 3  // how often a peer is waited for in vain, prompt as it may be in between
	retryAfter   = 200 * time.Millisecond
)

// block returns the proved block of a height at or above the trusted one, or just below a proved one. With compare, what the other peers say
// about it was compared.
func (v *Verifier) block(ctx context.Context, height int64, compare bool) (*types.LightBlock, error) {
	for {
		v.mu.Lock()
		if err := v.usable(); err != nil {
			v.mu.Unlock()
			return nil, err
		}
		if b := v.mu.blocks.get(height); b != nil && (b.compared || !compare) {
			v.mu.Unlock()
			return b.LightBlock, nil
		}
		f := v.mu.flights[height]
		if f == nil {
			under, cancel := context.WithCancel(v.ctx)
			f = &flight{height: height, compare: compare, cancel: cancel, done: make(chan struct{})}
			v.mu.flights[height] = f
			v.wg.Add(1) // as spawn, which would lock
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

func wait(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// usable says why nothing can be proved any more. Called with mu held.
func (v *Verifier) usable() error {
	if v.mu.closed {
		return ErrClosed
	}
	return v.mu.conflict
}

// finish tells those who wait. The flight may go on comparing.
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
		if b := v.mu.blocks.get(f.height); b != nil {
			b.compared = true
		}
	}
	f.block, f.err = block, err
	if v.mu.flights[f.height] == f {
		delete(v.mu.flights, f.height)
	}
	close(f.done)
}

// answer is what a peer said, or what became of proving it.
type answer struct {
	p     *peer
	begun bool // it is being asked now; its answer will follow
	lb    *types.LightBlock
	err   error
}

// group is the answers with one hash.
type group struct {
	waiting []answer // their proof has not begun
	proving int
}

func (v *Verifier) fly(ctx context.Context, f *flight) {
	var (
		ask     = v.newAsker(ctx, f.height)
		results = make(chan answer)
		groups  = map[string]*group{}
		proving = map[*peer]bool{}
		won     *types.LightBlock
		why     reasons
		hedge   = time.NewTicker(v.opts.Hedge)
		compare *time.Timer
		tooLate <-chan time.Time
	)
	defer hedge.Stop()
	ask.more()
	if len(ask.known) == 0 {
		v.finish(f, nil, fmt.Errorf("light block %d: %w", f.height, ErrNoPeers))
		return
	}
	prove := func(g *group) {
		a := g.waiting[0]
		g.waiting = g.waiting[1:]
		g.proving++
		proving[a.p] = true
		v.spawn(func() {
			_, a.err = v.prove(ctx, a.p, a.lb)
			send(ctx, results, a)
		})
	}
	v.mu.Lock()
	if b := v.mu.blocks.get(f.height); b != nil {
		won = b.LightBlock // only to be compared
	}
	v.mu.Unlock()
	for {
		if won != nil {
			if !f.compare {
				v.finish(f, won, nil)
				return
			}
			if compare == nil {
				compare = time.NewTimer(v.opts.CompareWait)
				defer compare.Stop()
				tooLate = compare.C
			}
			if !v.anyPrompt(ask.silent) && !v.anyTrusted(proving) {
				v.finish(f, won, nil)
			}
		}
		if len(ask.silent) == 0 && len(proving) == 0 { // then nothing waits either
			if won == nil {
				v.finish(f, nil, why.explain(f.height, len(ask.known)))
			}
			return
		}
		select {
		case <-ctx.Done():
			v.finish(f, nil, fmt.Errorf("light block %d: %w", f.height, ErrClosed))
			return
		case <-ask.joined:
			if won == nil {
				ask.more()
			} else {
				ask.joined = nil
			}
		case a := <-ask.answers:
			if !ask.heard(a) {
				continue
			}
			if a.err != nil {
				why.add(a.p, a.err)
				v.blame(a.p, a.err)
				continue
			}
			if won != nil && bytes.Equal(a.lb.Hash(), won.Hash()) {
				continue // it agrees
			}
			g := groups[string(a.lb.Hash())]
			if g == nil {
				g = &group{}
				groups[string(a.lb.Hash())] = g
			}
			g.waiting = append(g.waiting, a)
			if won != nil || g.proving == 0 {
				prove(g)
			}
		case r := <-results:
			g := groups[string(r.lb.Hash())]
			delete(proving, r.p)
			g.proving--
			switch {
			case errors.Is(r.err, ErrConflict):
				v.finish(f, nil, r.err)
				return
			case r.err != nil:
				why.add(r.p, r.err)
				v.blame(r.p, r.err)
				if won != nil {
					v.doubt(r.p)
				}
			case won == nil:
				won = r.lb
				g.waiting = nil // they agree
			}
			if won != nil {
				for _, g := range groups { // every other block is a lie or a conflict
					for len(g.waiting) > 0 {
						prove(g)
					}
				}
			} else if len(g.waiting) > 0 {
				prove(g)
			}
		case <-hedge.C:
			if won == nil {
				for _, g := range groups {
					if len(g.waiting) > 0 {
						prove(g)
					}
				}
			}
		case <-tooLate:
			ask.strike()
			for p := range proving {
				v.doubt(p)
			}
			v.finish(f, won, nil)
		}
	}
}

// blame tells of a lie, and nothing of what has another cause.
func (v *Verifier) blame(p *peer, err error) {
	if errors.Is(err, errLie) {
		v.lied(p, err)
	}
}

// usablePeers are those to ask.
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

// anyPrompt says whether one of them is worth waiting for.
func (v *Verifier) anyPrompt(silent map[*peer]bool) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	for p := range silent {
		if p.strikes == 0 && p.late < patience && !p.liar {
			return true
		}
	}
	return false
}

// anyTrusted says whether it is worth waiting for one of those who have to prove another block.
func (v *Verifier) anyTrusted(proving map[*peer]bool) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	for p := range proving {
		if !p.doubtful && !p.liar {
			return true
		}
	}
	return false
}

// doubt notes that a peer had another block than the proved one and neither proved it nor was caught lying: that delays others only once.
func (v *Verifier) doubt(p *peer) {
	v.mu.Lock()
	defer v.mu.Unlock()
	p.doubtful = true
}

// asker asks all usable peers for the block of a height: parallel of them at once, and one more whenever one has answered or has taken Hedge.
// It belongs to the goroutine that receives its answers.
type asker struct {
	v       *Verifier
	ctx     context.Context
	height  int64
	answers chan answer
	joined  <-chan struct{} // closed when there may be more to ask
	known   map[*peer]bool
	silent  map[*peer]bool // whose answer has not come; true: being asked
	places  chan struct{}
	all     chan struct{}
}

func (v *Verifier) newAsker(ctx context.Context, height int64) *asker {
	return &asker{v: v, ctx: ctx, height: height, answers: make(chan answer), known: map[*peer]bool{}, silent: map[*peer]bool{},
		places: make(chan struct{}, parallel), all: make(chan struct{}, mostParallel)}
}

// more asks those who were not asked yet: who answered in time last time first. Unless ctx ends, an answer comes from each.
func (a *asker) more() {
	a.v.mu.Lock()
	a.joined = a.v.mu.joined
	var peers []*peer
	for _, p := range a.v.mu.peers {
		if !p.liar && !a.known[p] {
			peers = append(peers, p)
			a.known[p], a.silent[p] = true, false
		}
	}
	slices.SortStableFunc(peers, func(p, q *peer) int { return p.strikes - q.strikes })
	a.v.mu.Unlock()
	a.v.spawn(func() {
		for _, p := range peers {
			if !send(a.ctx, a.all, struct{}{}) || !send(a.ctx, a.places, struct{}{}) || !send(a.ctx, a.answers, answer{p: p, begun: true}) {
				return
			}
			a.v.spawn(func() {
				defer func() { <-a.all }()
				leave := sync.OnceFunc(func() { <-a.places })
				slow := time.AfterFunc(a.v.opts.Hedge, leave)
				lb, err := a.v.fetch(a.ctx, p, a.height)
				slow.Stop()
				leave()
				send(a.ctx, a.answers, answer{p: p, lb: lb, err: err})
			})
		}
	})
}

// heard notes what came, and says whether it is an answer.
func (a *asker) heard(came answer) bool {
	if came.begun {
		a.silent[came.p] = true
		return false
	}
	delete(a.silent, came.p)
	return true
}

// strike notes who was asked and has not answered in time.
func (a *asker) strike() {
	for p, asked := range a.silent {
		if asked {
			a.v.answered(p, false)
			a.v.mu.Lock()
			p.late++
			a.v.mu.Unlock()
		}
	}
}

// send says whether it could before ctx ended.
func send[T any](ctx context.Context, to chan<- T, what T) bool {
	select {
	case to <- what:
		return true
	case <-ctx.Done():
		return false
	}
}

// fetch asks one peer for a light block. What it returns is consistent in itself and of that height (0: any).
func (v *Verifier) fetch(ctx context.Context, p *peer, height int64) (lb *types.LightBlock, err error) {
	err = v.ask(ctx, p, func(call context.Context) error {
		if lb, err = p.LightBlock(call, height); err != nil {
			return err
		}
		if err = checkBasic(lb, v.opts.ChainID, height); err != nil {
			return provider.ErrBadLightBlock{Reason: err}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return lb, nil
}

// ask puts a question to one peer, a busy one again. An error that is errLie says that no honest peer answers so.
func (v *Verifier) ask(ctx context.Context, p *peer, question func(context.Context) error) error {
	for try := 1; ; try++ {
		began := time.Now()
		call, cancel := context.WithTimeout(ctx, v.opts.CallTimeout)
		err := guard(func() error { return question(call) })
		late := call.Err() != nil
		cancel()
		var bad provider.ErrBadLightBlock
		switch {
		case err == nil:
			v.answered(p, time.Since(began) <= v.opts.CompareWait)
			return nil
		case errors.As(err, &bad):
			return fmt.Errorf("%w: %w", errLie, err)
		case ctx.Err() != nil:
			return ctx.Err()
		case late:
			v.answered(p, false)
			return fmt.Errorf("no answer within %v: %w", v.opts.CallTimeout, err)
		case errors.Is(err, provider.ErrLightBlockNotFound), errors.Is(err, provider.ErrHeightTooHigh):
			v.answered(p, time.Since(began) <= v.opts.CompareWait)
			return err
		case !errors.Is(err, provider.ErrNoResponse) || try == attempts:
			v.answered(p, false)
			return err
		}
		pause := time.NewTimer(retryAfter << (try - 1))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return ctx.Err()
		}
	}
}

// reasons collects why peers were of no use.
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

const reasonsShown = 5

// explain says what is missing. It is the sentinels of its causes too.
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
	text = append([]string{fmt.Sprintf("%s: %d asked, %d do not have it (pruned, or not yet made)", block, asked, missing)}, text...)
	if shown := len(text) - 1; shown < len(r.order)-missing {
		text = append(text, fmt.Sprintf("and %d more", len(r.order)-missing-shown))
	}
	return explained{strings.Join(text, "; "), causes}
}

// explained is a text with the sentinels that it stands for.
type explained struct {
	text   string
	causes []error
}

func (e explained) Error() string   { return e.text }
func (e explained) Unwrap() []error { return e.causes }
