package storagenode

import (
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/starling-kv/starling/avlstar"
)

// Recovered says from what a replica was opened.
type Recovered struct {
	State    int64 // height of the stored state
	Replayed int   // updates of the log since
	Torn     Torn  // what was cut off the log's end
	// Damaged are the stored states that could not be used and were dropped, with why. An older one
	// and more of the log have taken their place.
	Damaged []error
}

// Create stores the first state of a range, from which Open begins: the leaves in the range with
// their heights, ascending, and the seam of that state. They are checked: what does not have the
// commitment's root is refused, and leaves nothing. It fails if the range has a stored state
// already. The log is emptied.
func Create(o Options, info StateInfo, leaves iter.Seq2[avlstar.Leaf, error]) error {
	if err := create(o, info, leaves); err != nil {
		return fmt.Errorf("storagenode: the first state of a range, height %d: %w", info.Height, err)
	}
	return nil
}

// CreateProved is Create of the state after a block that p has, which was proved by its hashes: it
// is not built a second time, since there may be no memory for that. What is damaged on its way to
// the disk is found by Open. Error: also *avlstar.MissingNodeError if p lacks a part of the range.
func CreateProved(o Options, height int64, p *avlstar.Partial) error {
	err := func() error {
		seam, err := p.Seam(o.Range)
		if err != nil {
			return err
		}
		w, err := begin(o, StateInfo{Height: height, Commitment: p.Commitment(), Seam: seam})
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

// begin begins the first state of a range, with an empty log.
func begin(o Options, info StateInfo) (StateWriter, error) {
	switch there, err := o.Disk.List(); {
	case err != nil:
		return nil, err
	case len(there) > 0:
		return nil, fmt.Errorf("the range has states of heights %d to %d already", there[0], there[len(there)-1])
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

// writeThrough yields leaves, and writes them.
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

// build makes the partial tree of a range.
func build(r avlstar.KeyRange, info StateInfo, leaves iter.Seq2[avlstar.Leaf, error]) (*avlstar.Partial, error) {
	seam, err := avlstar.DecodeBag(info.Seam)
	if err != nil {
		return nil, fmt.Errorf("the seam: %w", err)
	}
	return avlstar.FromRange(info.Commitment, r, seam, leaves)
}

// Open opens the replica whose files these are: a stored state, and what the log has since. Of the
// stored states it takes the newest from which on all ServeHeights can be answered, and another one
// where that is damaged. Errors: ErrNoState if there is none, so that Create must come first;
// ErrDamaged; ErrGap; ErrOther.
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

// abandon gives up what a failed Open has made. The disk stays the caller's.
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
		default: // an older one and the log may do
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
		return errors.Join(append(r.recovered.Damaged, noState(states, oldest, logged))...)
	}
	r.recovered.State = r.newest().height
	if next, ok := r.log.Next(); ok && (next <= r.newest().height || !logged && next != r.newest().height+1) {
		// The log lost its last update to damage, was not in use when the state was made, or this
		// was interrupted.
		if err := r.log.Reset(); err != nil {
			return err
		}
	}
	if err := r.replayLog(); err != nil {
		return err
	}
	for _, height := range damaged { // so that no truncation of the log relies on them
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
		return fmt.Errorf("%w: the range is empty, its first state must be fetched", ErrNoState)
	case logged:
		return fmt.Errorf("%w: no stored state that can be read reaches the log, which begins with height %d; the states are %v; %s", ErrGap, oldest, states, remedy)
	}
	return fmt.Errorf("%w: none of the states %v can be read; %s", ErrDamaged, states, remedy)
}

// preferred returns the heights of stored states that can be begun from, the best first: the newest
// from which on as many heights as are answered can be replayed, older ones, newer ones.
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

// load builds the tree of a stored state. What does not have its commitment's root is ErrDamaged.
func (r *Replica) load(height int64) (version, error) {
	stored, err := r.o.Disk.Open(height)
	if err != nil {
		return version{}, err
	}
	defer func() { _ = stored.Close() }() // it was only read
	var failed error                      // of the disk
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
	case err != nil && !errors.Is(err, avlstar.ErrOtherState) && !errors.Is(err, avlstar.ErrInvalidBag):
		return version{}, err
	case err != nil:
		return version{}, fmt.Errorf("%w: the stored state of height %d: %w; %s", ErrDamaged, height, err, remedy)
	}
	return version{height, p}, nil
}

// replayLog applies what the log has since the state that was loaded.
func (r *Replica) replayLog() error {
	for e, err := range r.log.Since(r.newest().height) {
		if err != nil {
			return err
		}
		base := r.newest()
		if e.Height != base.height+1 {
			return fmt.Errorf("%w: the log continues with height %d after the state of height %d; %s", ErrGap, e.Height, base.height, remedy)
		}
		u, err := avlstar.DecodeUpdate(e.Update)
		if err != nil {
			return fmt.Errorf("%w: the logged update of height %d: %w; %s", ErrDamaged, e.Height, err, remedy)
		}
		p, err := base.partial.Replay(r.o.Range, u)
		if errors.Is(err, avlstar.ErrOtherState) {
			return fmt.Errorf("%w: the logged update of height %d does not fit the state before: %w; %s", ErrDamaged, e.Height, err, remedy)
		} else if err != nil {
			return fmt.Errorf("the logged update of height %d: %w", e.Height, err)
		}
		r.mu.versions = append(r.mu.versions, version{e.Height, p})
		r.giveUp()
		r.recovered.Replayed++
	}
	return nil
}

// Recovered says from what the replica was opened.
func (r *Replica) Recovered() Recovered { return r.recovered }

// Store stores the state that is due, if one is: that of the last multiple of Interval. Then it
// drops stored states that are older than the last Keep, and what the log has before the oldest
// that is left. It is to be called after Advance, by another goroutine: blocks do not wait for it.
// After an error the state is not stored, and the next one is tried at its height.
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
	if !slices.Contains(states, v.height) { // which it has if it was opened from an older one
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
	seam, err := v.partial.Seam(r.o.Range)
	if err != nil {
		return err
	}
	w, err := r.o.Disk.Begin(StateInfo{Height: v.height, Commitment: v.partial.Commitment(), Seam: seam})
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
