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
	"github.com/starling-kv/starling/internal/sleep"
)

// Source fetches nodes that are missing in the tree of a sharded validator. Its methods are called
// concurrently, and without a lock of the application.
type Source interface {
	// Fetch returns multiproofs of the state after block height, which open wants below the stubs
	// below.Held (below.Depth is beyond all of them): see avlstar.Version.Multiproof. It may return
	// a part of that, nodes of older states, or nothing. It should return as soon as it has
	// something, since it is called again for the rest. below.MaxBytes, if it is not 0, is the
	// approximate maximum of the bytes that it returns. An error explains why nothing, or not
	// everything, was fetched. Fetch returns soon after ctx has ended. The caller does not modify
	// the multiproofs.
	Fetch(ctx context.Context, height int64, wants []avlstar.Want, below avlstar.Below) ([]*avlstar.Multiproof, error)
}

const (
	// DefaultWitnessTimeout leaves most of timeout_prevote's round for voting.
	DefaultWitnessTimeout = time.Second
	// DefaultWitnessBytes is far above the bytes that a network delivers in DefaultWitnessTimeout,
	// and far below the total values of all keys that a block may name.
	DefaultWitnessBytes = 256 << 20

	// Pauses between two requests, if the first returned nothing.
	minPause, maxPause = 50 * time.Millisecond, time.Second

	// logEvery is the interval at which a wait is logged.
	logEvery = 10 * time.Second

	// startTimeout limits the time for fetching the records that the application needs to start.
	startTimeout = time.Minute
)

// The calls for which nodes are fetched, as labels of metrics.
const (
	forBlock    = "finalize_block"
	forProposal = "process_proposal"
	forLater    = "prefetch"
	forQuery    = "query"
	forStart    = "start"
)

var errTooMuch = errors.New("it needs more bytes than a proposal may fetch from storage nodes at once")

// ErrBlockWitnesses is returned if a decided block needs more of the state than
// Options.BlockWitnessBytes. The application stays at the block before.
var ErrBlockWitnesses = errors.New("the block needs more of the state than this machine has memory for: start this home on a machine with more memory, or join with a new node in local mode")

var errMoved = errors.New("the state advanced while nodes of it were being fetched")

// fetcher fetches nodes into one version, which it replaces by others of the same state.
type fetcher struct {
	app     *App
	call    string
	height  int64
	lock    sync.Locker // held by the caller, and released while it waits; nil: none
	version func() *avlstar.Version
	replace func(next *avlstar.Version) // takes over a reference

	waited time.Duration // for the source
	bytes  int           // length of the multiproofs that it received
	most   int           // number of bytes at which nothing more is requested; 0: no limit
	logged time.Time
}

// ofBlock returns the fetcher for the committed state. The caller holds block's lock, which is
// released during each fetch.
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

// bring fetches the nodes for n until the version has them. An error is that of ctx, or a failure
// of this node; the source causes none, whatever it returns.
func (f *fetcher) bring(ctx context.Context, n *needs) error {
	pause := minPause
	exact := n.held // nil: the stubs on the paths to wants
	began := f.version()
	for first := true; ; first = false {
		wants, held := n.wants, exact
		switch v := f.version(); {
		case v == nil:
			return errMoved
		case exact == nil:
			wants, held = v.Missing(n.wants)
		case v != began:
			return nil // another request may have fetched the nodes, and this one would never help
		}
		if len(held) == 0 && first { // the missing nodes lie next to the paths to wants
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
			return nil // the caller finds out whether that was all
		case grown:
			pause = minPause
		default:
			f.log(wants, held, why)
			if f.unlocked(func() { err = sleep.For(ctx, pause) }); err != nil {
				return fmt.Errorf("%w: %d nodes of the state after block %d are missing, the first on the path to key %q", err, len(held), f.height, shorten(wants[0].Key))
			}
			pause = min(2*pause, maxPause)
		}
	}
}

// once fetches once and reports whether the version has more nodes now. why is the error of the
// source.
func (f *fetcher) once(ctx context.Context, wants []avlstar.Want, held map[avlstar.Hash]avlstar.Span) (grown bool, why, err error) {
	if f.most > 0 && f.bytes >= f.most {
		why := errTooMuch
		if f.call == forBlock {
			why = ErrBlockWitnesses
		}
		return false, nil, fmt.Errorf("%w: %d of %d bytes have arrived, and %d nodes of the state after block %d are missing", why, f.bytes, f.most, len(held), f.height)
	}
	m := &f.app.options.Metrics.Witness
	m.Rounds.WithLabelValues(f.call).Inc()
	m.Missing.WithLabelValues(f.call).Add(float64(len(held)))
	var multiproofs []*avlstar.Multiproof
	f.unlocked(func() {
		multiproofs, why = f.app.options.Source.Fetch(ctx, f.height, wants, avlstar.Below{Depth: math.MaxInt, Held: held, MaxBytes: max(0, f.most-f.bytes)})
	})
	for _, b := range multiproofs {
		f.bytes += b.Bytes()
		m.Bytes.WithLabelValues(f.call).Add(float64(b.Bytes()))
	}
	if f.call == forBlock || f.call == forProposal {
		f.app.witnesses.received(f.bytes)
	}
	v := f.version()
	if v == nil {
		return false, why, errMoved
	}
	next, done, err := v.Graft(multiproofs...)
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

// unlocked calls wait without the lock, and counts the time until it has the lock again.
func (f *fetcher) unlocked(wait func()) {
	began := time.Now()
	defer func() { f.waited += time.Since(began) }()
	if f.lock != nil {
		f.lock.Unlock()
		defer f.lock.Lock()
	}
	wait()
}

// observe records the time that a call has waited, also if that was 0.
func (f *fetcher) observe() {
	f.app.options.Metrics.Witness.Wait.WithLabelValues(f.call).Observe(f.waited.Seconds())
}

// log logs the missing nodes, at first and then every logEvery.
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
		f.app.logger.Error("the block waits for missing nodes of the state", "state", f.height, "nodes", len(held), "wants", len(wants),
			"from_key", fmt.Sprintf("%q", shorten(least)), "to_key", fmt.Sprintf("%q", shorten(greatest)), "err", why)
	}
}

// refresh replaces the committed version by next, a version of the same state, for execution,
// checks and queries. It takes over a reference. The caller holds block's lock.
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
		before.Release() // only after published was replaced: see acquire
	}
	a.check.refresh(next)
	old.Release()
}

// alive returns a context that ends with ctx, and with Stop. The caller must call the returned
// function when it no longer needs the context.
func (a *App) alive(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(a.life, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// Stop ends all waiting for a Source permanently: a block with missing nodes fails, and is executed
// after the next start. Stop returns when no nodes are being fetched ahead.
func (a *App) Stop() {
	a.ahead.mu.Lock()
	a.end()
	a.ahead.mu.Unlock()
	a.ahead.running.Wait()
}

// retention returns the rules for the nodes that versions keep in memory.
func (a *App) retention() avlstar.Retention {
	r := a.options.Retention
	keep, prefer := r.Keep, r.Prefer
	r.Keep = func(first, after []byte) bool { return KeepRecords(first, after) || keep != nil && keep(first, after) }
	r.Prefer = func(first, after []byte) bool {
		return PreferNonces(first, after) || a.expected.any(first, after) || prefer != nil && prefer(first, after)
	}
	return r
}

// begin implements backing.
func (a byWitness) begin(height int64, v *avlstar.Version) (*avlstar.Version, error) {
	v.Retain()
	ctx, cancel := context.WithTimeout(a.life, startTimeout)
	defer cancel()
	n := new(needs) // without the stubs that were reached: perhaps nothing is missing
	for _, key := range [][]byte{ParamsKey(), UpgradeKey(), StrangersKey()} {
		n.add(avlstar.Want{Key: key})
	}
	f := &fetcher{app: a.App, call: forStart, height: height, version: func() *avlstar.Version { return v }, replace: func(next *avlstar.Version) {
		v.Release()
		v = next
	}}
	if err := f.bring(ctx, n); err != nil {
		v.Release()
		return nil, fmt.Errorf("the parameters of the state after block %d: %w", height, err)
	}
	return v, nil
}

// shed implements backing.
func (a byWitness) shed(p *pending) error {
	partial, ok := p.version.Partial()
	if !ok {
		return nil
	}
	a.expected.block()
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
