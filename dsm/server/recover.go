package server

import (
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/storage/seglog"
)

// Recovered describes what a replica was opened from.
type Recovered struct {
	State    int64       // height of the stored state
	Replayed int         // number of logged updates replayed on it
	Torn     seglog.Torn // what was cut off the end of the log
	// Damaged lists why stored states were unusable and were dropped. An older state and more of
	// the log replaced them.
	Damaged []error
}

// Create stores the first state of a range, which Open starts from: the leaves of the range in
// ascending order with their heights, and the boundary proof of that state. It verifies them
// against the root of the commitment and stores nothing on a mismatch. It fails if the range
// already has a stored state. It empties the log.
func Create(o Options, info StateInfo, leaves iter.Seq2[avlstar.Leaf, error]) error {
	if err := create(o, info, leaves); err != nil {
		return fmt.Errorf("storagenode: the first state of a range, height %d: %w", info.Height, err)
	}
	return nil
}

// CreateProved is Create with the state in p, whose hashes have already been verified. It does not
// build the tree again, since memory may not suffice for two. Open detects damage on the way to the
// disk. If p does not have the whole range, the error is *avlstar.MissingNodeError.
func CreateProved(o Options, height int64, p *avlstar.Partial) error {
	err := func() error {
		boundary, err := p.Boundary(o.Range)
		if err != nil {
			return err
		}
		w, err := begin(o, StateInfo{Height: height, Commitment: p.Commitment(), Boundary: boundary})
		if err != nil {
			return err
		}
		for _, err = range writeThrough(p.Leaves(o.Range), w) {
			if err != nil {
				return errors.Join(err, w.Close())
			}
		}
		return errors.Join(w.Keep(), w.Close())
	}()
	if err != nil {
		return fmt.Errorf("storagenode: the first state of a range, height %d: %w", height, err)
	}
	return nil
}

func create(o Options, info StateInfo, leaves iter.Seq2[avlstar.Leaf, error]) (err error) {
	w, err := begin(o, info)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	p, err := build(o.Range, info, writeThrough(leaves, w))
	if err != nil {
		return err
	}
	p.Release()
	return w.Keep()
}

// begin starts the first state of a range with an empty log.
func begin(o Options, info StateInfo) (StateWriter, error) {
	switch there, err := o.Disk.List(); {
	case err != nil:
		return nil, err
	case len(there) > 0:
		return nil, fmt.Errorf("the range already has states of heights %d to %d", there[0], there[len(there)-1])
	}
	log, err := OpenLog(o.Log)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(log.Reset(), log.Close()); err != nil {
		return nil, err
	}
	return o.Disk.Begin(info)
}

// writeThrough yields leaves and writes each to w.
func writeThrough(leaves iter.Seq2[avlstar.Leaf, error], w StateWriter) iter.Seq2[avlstar.Leaf, error] {
	return func(yield func(avlstar.Leaf, error) bool) {
		for l, err := range leaves {
			if err == nil {
				err = w.Write(l)
			}
			if !yield(l, err) || err != nil {
				return
			}
		}
	}
}

// build builds the partial tree of a range.
func build(r avlstar.KeyRange, info StateInfo, leaves iter.Seq2[avlstar.Leaf, error]) (*avlstar.Partial, error) {
	boundary, err := avlstar.DecodeMultiproof(info.Boundary)
	if err != nil {
		return nil, fmt.Errorf("the boundary proof: %w", err)
	}
	return avlstar.FromRange(info.Commitment, r, boundary, leaves)
}

// Open opens the replica from a stored state and the log since that state. It prefers the newest
// stored state from which all ServeHeights can be served, and falls back to another one if that is
// damaged. Errors: ErrNoState if there is none, so Create must come first; ErrDamaged; ErrGap;
// ErrOther.
func Open(o Options) (*Replica, error) {
	if err := o.setDefaults(); err != nil {
		return nil, fmt.Errorf("storagenode: open: %w", err)
	}
	r := &Replica{o: o}
	if err := r.open(); err != nil {
		r.abandon()
		return nil, fmt.Errorf("storagenode: open: %w", err)
	}
	return r, nil
}

// abandon releases what a failed Open has created. The disk remains the caller's.
func (r *Replica) abandon() {
	for _, v := range r.mu.versions {
		v.partial.Release()
	}
	if r.log != nil {
		_ = r.log.Close() // nothing was written
	}
}

func (r *Replica) open() (err error) {
	if r.log, err = OpenLog(r.o.Log); err != nil {
		return err
	}
	r.recovered.Torn = r.log.Torn()
	states, err := r.o.Disk.List()
	if err != nil {
		return err
	}
	oldest, newest, logged := r.log.Heights()
	var damaged []int64
	for _, height := range preferred(states, oldest, newest, logged, int64(r.o.ServeHeights)) {
		v, err := r.load(height)
		switch {
		case err == nil:
		case errors.Is(err, ErrOther):
			return err
		default: // an older state plus the log may work
			r.recovered.Damaged = append(r.recovered.Damaged, err)
			if errors.Is(err, ErrDamaged) {
				damaged = append(damaged, height)
			}
			continue
		}
		r.mu.versions = []version{v}
		break
	}
	if len(r.mu.versions) == 0 {
		for _, err := range r.recovered.Damaged {
			if !errors.Is(err, ErrDamaged) { // the disk failed: that state may be whole
				return err
			}
		}
		return errors.Join(append(r.recovered.Damaged, noState(states, oldest, logged))...)
	}
	r.recovered.State = r.newest().height
	if next, ok := r.log.Next(); ok && (next <= r.newest().height || !logged && next != r.newest().height+1) {
		// The log lost its last update to damage, was not in use when the state was stored, or this
		// step was interrupted.
		if err := r.log.Reset(); err != nil {
			return err
		}
	}
	if err := r.replayLog(); err != nil {
		return err
	}
	for _, height := range damaged { // so that truncating the log never relies on them
		if err := r.o.Disk.Drop(height); err != nil {
			return err
		}
	}
	r.mu.waiting = newWaiting(r.o.Limits, r.newest().height+1)
	return nil
}

func noState(states []int64, oldest int64, logged bool) error {
	switch {
	case len(states) == 0:
		return fmt.Errorf("%w: the range is empty; fetch its first state", ErrNoState)
	case logged:
		return fmt.Errorf("%w: the log starts at height %d, and none of the readable stored states %v reaches it", ErrGap, oldest, states)
	}
	return fmt.Errorf("%w: none of the states %v can be read", ErrDamaged, states)
}

// preferred returns the heights of usable stored states, the best first: the newest state that is
// followed by at least answered heights, then older ones, then newer ones.
func preferred(states []int64, oldest, newest int64, logged bool, answered int64) []int64 {
	last := int64(-1)
	if len(states) > 0 {
		last = states[len(states)-1]
	}
	if logged {
		last = max(last, newest)
	}
	var before, after []int64
	for _, height := range states {
		usable := logged && oldest <= height+1 && height <= newest || height == last
		switch {
		case !usable:
		case height <= last-answered+1:
			before = append(before, height)
		default:
			after = append(after, height)
		}
	}
	slices.Reverse(before)
	return append(before, after...)
}

// load builds the tree of a stored state. If its root does not match the commitment, the error is
// ErrDamaged.
func (r *Replica) load(height int64) (version, error) {
	stored, err := r.o.Disk.Open(height)
	if err != nil {
		return version{}, err
	}
	defer func() { _ = stored.Close() }() // it was only read
	var failed error                      // error of the disk
	leaves := func(yield func(avlstar.Leaf, error) bool) {
		for l, err := range stored.Leaves() {
			failed = err
			if !yield(l, err) {
				return
			}
		}
	}
	info := stored.Info()
	p, err := build(r.o.Range, info, leaves)
	switch {
	case failed != nil:
		return version{}, failed
	case err != nil && !errors.Is(err, avlstar.ErrOtherState) && !errors.Is(err, avlstar.ErrInvalidMultiproof):
		return version{}, err
	case err != nil:
		return version{}, fmt.Errorf("%w: the stored state of height %d: %w", ErrDamaged, height, err)
	}
	return version{height, p}, nil
}

// replayLog applies the updates logged since the loaded state.
func (r *Replica) replayLog() error {
	for e, err := range r.log.Since(r.newest().height) {
		if err != nil {
			return err
		}
		base := r.newest()
		if e.Height != base.height+1 {
			return fmt.Errorf("%w: the log continues with height %d after the state of height %d", ErrGap, e.Height, base.height)
		}
		u, err := avlstar.DecodeUpdate(e.Update)
		if err != nil {
			return fmt.Errorf("%w: the logged update of height %d: %w", ErrDamaged, e.Height, err)
		}
		p, err := base.partial.Replay(r.o.Range, u)
		if errors.Is(err, avlstar.ErrOtherState) {
			return fmt.Errorf("%w: the logged update of height %d does not apply to the state before it: %w", ErrDamaged, e.Height, err)
		} else if err != nil {
			return fmt.Errorf("the logged update of height %d: %w", e.Height, err)
		}
		r.mu.versions = append(r.mu.versions, version{e.Height, p})
		r.giveUp()
		r.recovered.Replayed++
	}
	return nil
}

// Recovered returns what the replica was opened from.
func (r *Replica) Recovered() Recovered { return r.recovered }

// Store stores the due state, if any: the state at the last multiple of Interval. Then it drops all
// but the last Keep stored states, and truncates the log before the oldest that remains. Call it
// after Advance from another goroutine, so that blocks do not wait for it. After an error the state
// is not stored; the next attempt is at the next multiple of Interval.
func (r *Replica) Store() error {
	r.storing.Lock()
	defer r.storing.Unlock()
	r.mu.Lock()
	due := r.mu.due
	r.mu.due = nil
	r.mu.Unlock()
	if due == nil {
		return nil
	}
	defer due.partial.Release()
	if err := r.store(due); err != nil {
		return fmt.Errorf("storagenode: the state of height %d: %w", due.height, err)
	}
	return nil
}

func (r *Replica) store(v *version) (err error) {
	states, err := r.o.Disk.List()
	if err != nil {
		return err
	}
	if !slices.Contains(states, v.height) { // stored already if opened from an older state
		if err := r.write(v); err != nil {
			return err
		}
		states = append(states, v.height)
		slices.Sort(states)
	}
	for len(states) > r.o.Keep {
		if err := r.o.Disk.Drop(states[0]); err != nil {
			return err
		}
		states = states[1:]
	}
	r.logging.Lock()
	defer r.logging.Unlock()
	return r.log.Truncate(states[0])
}

func (r *Replica) write(v *version) (err error) {
	boundary, err := v.partial.Boundary(r.o.Range)
	if err != nil {
		return err
	}
	w, err := r.o.Disk.Begin(StateInfo{Height: v.height, Commitment: v.partial.Commitment(), Boundary: boundary})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	for l, err := range v.partial.Leaves(r.o.Range) {
		if err != nil {
			return err
		}
		if err := w.Write(l); err != nil {
			return err
		}
	}
	return w.Keep()
}
