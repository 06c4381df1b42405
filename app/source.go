package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/starling-kv/starling/avlstar"
)

// Source brings what the tree of a sharded validator lacks. Its methods are called concurrently,
// and without a lock of the application.
type Source interface {
	// Fetch returns bags of the state after block height, which open what wants name below the
	// stubs below.Held (below.Depth is beyond all of them): see avlstar.Version.Bag. It may bring
	// a part of that, nodes of older states, or nothing; and it should return as soon as it has
	// something, since it is called again for the rest. below.MaxBytes, if it is not 0, is about
	// how much it brings at most. An error says why nothing, or not all, came. It returns soon
	// after ctx has ended. The caller does not modify the bags.
	Fetch(ctx context.Context, height int64, wants []avlstar.Want, below avlstar.Below) ([]*avlstar.Bag, error)
}

const (
	// DefaultWitnessTimeout leaves most of timeout_prevote's round for voting.
	DefaultWitnessTimeout = time.Second
	// DefaultWitnessBytes is far above what a network brings in DefaultWitnessTimeout, and far
	// below the values of all keys that a block may name.
	DefaultWitnessBytes = 256 << 20

	// Pauses between two requests of which the first brought nothing.
	minPause, maxPause = 50 * time.Millisecond, time.Second

	// logEvery is how often a wait is logged.
	logEvery = 10 * time.Second

	// startTimeout limits the time for the records without which nothing can start.
	startTimeout = time.Minute
)

// The calls for which something is fetched, as metrics name them.
const (
	forBlock    = "finalize_block"
	forProposal = "process_proposal"
	forLater    = "prefetch"
	forQuery    = "query"
	forStart    = "start"
)

var errTooMuch = errors.New("it takes more than a proposal may bring from storage nodes at once")

// ErrBlockWitnesses: a block that was decided needs more of the state than
// Options.BlockWitnessBytes. The application stays at the block before.
var ErrBlockWitnesses = errors.New("the block needs more of the state than this machine has memory for: start this home on a machine with more memory, or join with a new node in local mode")

var errMoved = errors.New("the state advanced while nodes of it were being fetched")

// fetcher brings nodes into one version, which it replaces by others of the same state.
type fetcher struct {
	app     *App
	call    string
	height  int64
	lock    sync.Locker // held by the caller, and given up while it waits; nil: none
	version func() *avlstar.Version
	replace func(next *avlstar.Version) // takes over a reference

	rounds int
	bytes  int // of the bags that came
	most   int // of bytes, from which on nothing more is asked for; 0: no limit
	logged time.Time
}

// ofBlock returns the fetcher for the committed state. The caller holds block's lock, which is
// given up during each fetch.
func (a *App) ofBlock(call string) *fetcher {
	height := a.block.height
	return &fetcher{
		app: a, call: call, height: height, lock: &a.block,
		version: func() *avlstar.Version {
			if a.block.height != height {
				return nil
			}
			return a.block.version
		},
		replace: a.refresh,
	}
}

// bring fetches what n names until the version has it. An error is that of ctx, or a failure of
// this node: what comes from the source, or does not, is never one.
func (f *fetcher) bring(ctx context.Context, n *needs) error {
	pause := minPause
	exact := n.held // nil: the stubs on the ways to wants
	began := f.version()
	for first := true; ; first = false {
		wants, held := n.wants, exact
		switch v := f.version(); {
		case v == nil:
			return errMoved
		case exact == nil:
			wants, held = v.Lacks(n.wants)
		case v != began:
			return nil // perhaps another request brought it: this one would bring nothing new, ever
		}
		if len(held) == 0 && first { // it lies beside the ways to what was noted
			exact = n.met
			wants, held = n.wants, exact
		}
		if len(held) == 0 {
			return nil
		}
		grown, why, err := f.once(ctx, wants, held)
		switch {
		case err != nil:
			return err
		case exact != nil && grown:
			return nil // who found it missing finds out whether that was all
		case grown:
			pause = minPause
		default:
			f.log(wants, held, why)
			if err := f.sleep(ctx, pause); err != nil {
				return fmt.Errorf("%w: %d nodes of the state after block %d are missing, the first on the way to key %q", err, len(held), f.height, shorten(wants[0].Key))
			}
			pause = min(2*pause, maxPause)
		}
	}
}

// once fetches once and reports whether the version has more now. why is what the source said.
func (f *fetcher) once(ctx context.Context, wants []avlstar.Want, held map[avlstar.Hash]avlstar.Span) (grown bool, why, err error) {
	if f.most > 0 && f.bytes >= f.most {
		why := errTooMuch
		if f.call == forBlock {
			why = ErrBlockWitnesses
		}
		return false, nil, fmt.Errorf("%w: %d of %d bytes have come, and %d nodes of the state after block %d are missing", why, f.bytes, f.most, len(held), f.height)
	}
	f.rounds++
	m := &f.app.options.Metrics.Witness
	m.Rounds.WithLabelValues(f.call).Inc()
	m.Missing.WithLabelValues(f.call).Add(float64(len(held)))
	if f.lock != nil {
		f.lock.Unlock()
	}
	bags, why := f.app.options.Source.Fetch(ctx, f.height, wants, avlstar.Below{Depth: math.MaxInt, Held: held, MaxBytes: max(0, f.most-f.bytes)})
	if f.lock != nil {
		f.lock.Lock()
	}
	for _, b := range bags {
		f.bytes += b.Bytes()
	}
	v := f.version()
	if v == nil {
		return false, why, errMoved
	}
	next, done, err := v.Graft(bags...)
	if err != nil {
		return false, why, fmt.Errorf("the state after block %d: %w", f.height, err)
	}
	if done.Inner+done.Leaves == 0 {
		next.Release()
		return false, why, nil
	}
	f.replace(next)
	return true, why, nil
}

// sleep waits without the lock. It returns the error of ctx if that ends meanwhile.
func (f *fetcher) sleep(ctx context.Context, pause time.Duration) error {
	if f.lock != nil {
		f.lock.Unlock()
		defer f.lock.Lock()
	}
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// log says what is being waited for, at first and then every logEvery.
func (f *fetcher) log(wants []avlstar.Want, held map[avlstar.Hash]avlstar.Span, why error) {
	if now := time.Now(); f.call == forBlock && (f.logged.IsZero() || now.Sub(f.logged) >= logEvery) {
		f.logged = now
		least, greatest := wants[0].Key, wants[0].Key
		for _, w := range wants {
			if bytes.Compare(w.Key, least) < 0 {
				least = w.Key
			}
			if bytes.Compare(w.Key, greatest) > 0 {
				greatest = w.Key
			}
		}
		f.app.logger.Error("the block waits for nodes of the state that nobody has sent yet", "state", f.height, "nodes", len(held), "wants", len(wants),
			"from_key", fmt.Sprintf("%q", shorten(least)), "to_key", fmt.Sprintf("%q", shorten(greatest)), "err", why)
	}
}

// refresh makes next, a version of the same state as the committed one, the one that is executed
// on, checked against and shown to queries. It takes over a reference. The caller holds block's
// lock.
func (a *App) refresh(next *avlstar.Version) {
	old := a.block.version
	a.block.version = next
	if p := a.published.Load(); len(p.recent) > 0 && p.height == a.block.height {
		recent := append([]committed(nil), p.recent...)
		last := &recent[len(recent)-1]
		before := last.version
		next.Retain()
		last.version = next
		a.published.Store(&published{height: p.height, recent: recent})
		before.Release() // only now that published lacks it: see acquire
	}
	a.check.refresh(next)
	old.Release()
}

// alive returns a context that ends with ctx, and with Stop. The caller calls the function that is
// returned when it does not need it any more.
func (a *App) alive(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(a.life, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// Stop ends all waiting for a Source, for good: a block that lacks nodes fails, and is executed by
// the next start. It returns when nothing is being fetched ahead.
func (a *App) Stop() {
	a.ahead.mu.Lock()
	a.end()
	a.ahead.mu.Unlock()
	a.ahead.running.Wait()
}

// retention returns what versions keep in memory.
func (a *App) retention() avlstar.Retention {
	r := a.options.Retention
	keep, prefer := r.Keep, r.Prefer
	r.Keep = func(first, after []byte) bool { return KeepRecords(first, after) || keep != nil && keep(first, after) }
	r.Prefer = func(first, after []byte) bool {
		return PreferNonces(first, after) || prefer != nil && prefer(first, after)
	}
	return r
}

// begin returns v, with a reference, or a version like it that has the records without which the
// application cannot start.
func (a *App) begin(height int64, v *avlstar.Version) (*avlstar.Version, error) {
	v.Retain()
	if a.options.Source == nil {
		return v, nil
	}
	ctx, cancel := context.WithTimeout(a.life, startTimeout)
	defer cancel()
	n := newNeeds() // without what was met: perhaps nothing is lacking
	for _, key := range [][]byte{ParamsKey(), UpgradeKey(), StrangersKey()} {
		n.add(avlstar.Want{Key: key})
	}
	f := &fetcher{app: a, call: forStart, height: height, version: func() *avlstar.Version { return v }, replace: func(next *avlstar.Version) {
		v.Release()
		v = next
	}}
	if err := f.bring(ctx, n); err != nil {
		v.Release()
		return nil, fmt.Errorf("the parameters of the state after block %d: %w", height, err)
	}
	return v, nil
}

// limitMemory turns on Options.Retention for the tree of v, once for each tree.
func (a *App) limitMemory(v *avlstar.Version) {
	if p, ok := v.Partial(); ok && a.options.Source != nil {
		p.EnableRetention(a.retention())
	}
}

// shed ends the block p: what is not to be kept leaves the memory of its version. The caller holds
// block's lock.
func (a *App) shed(p *pending) error {
	partial, ok := p.version.Partial()
	if !ok {
		return nil
	}
	next, err := partial.Shed()
	if err != nil {
		return err
	}
	p.version.Release()
	p.version = next.Version()
	if p.applied != nil {
		p.applied.Release()
		p.applied = nil
	}
	return nil
}
