package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/starling-kv/starling/avlstar"
)

var (
	// ErrNoState: the store of the range is empty.
	ErrNoState = errors.New("the range has no state")
	// ErrDamaged: bytes on disk differ from those that were written.
	ErrDamaged = errors.New("damaged")
	// ErrGap: the heights on disk are not consecutive.
	ErrGap = errors.New("heights are missing")
)

// Recovered describes what a replica was opened from.
type Recovered struct {
	State    int64 // height of the stored state
	Replayed int   // number of logged updates replayed on it
}

// Open opens the replica from its stored state and the log since that state. Errors: ErrNoState if
// there is none, so the caller must create one (rangestore.Store.Create); ErrDamaged;
// storage.ErrCorrupt; ErrGap; that of ctx. The store remains the caller's after an error.
func Open(ctx context.Context, o Options) (*Replica, error) {
	o.setDefaults()
	r := &Replica{o: o, id: RangeIDOf(o.Range)}
	if err := r.open(ctx); err != nil {
		for _, v := range r.mu.versions {
			v.partial.Release()
		}
		return nil, fmt.Errorf("storagenode: open: %w", err)
	}
	return r, nil
}

func (r *Replica) open(ctx context.Context) error {
	height, p, ok, err := r.o.Store.Load(ctx, r.o.Loading)
	switch {
	case err != nil:
		return err
	case !ok:
		return ErrNoState
	}
	r.mu.snapshots = map[int64]int{}
	r.mu.versions = []version{{height: height, partial: p}}
	r.recovered.State = height
	if err := r.replayLog(ctx, height); err != nil {
		return err
	}
	r.mu.waiting = newWaiting(r.o.Limits, r.newest().height+1)
	r.mu.waiting.known, r.mu.waiting.named, r.mu.waiting.strangers = r.o.Known, r.o.Named, r.o.Strangers
	if r.truncated < height {
		r.truncated = height
		return r.o.Log.Truncate(r.id, height)
	}
	return nil
}

// replayLog applies the updates logged since the stored state. Updates of an earlier state of the
// range are forgotten: its replacement was interrupted.
func (r *Replica) replayLog(ctx context.Context, height int64) error {
	oldest, newest, logged := r.o.Log.Heights(r.id)
	switch {
	case !logged:
		return nil
	case newest < height:
		return r.o.Log.Forget(r.id)
	case oldest > height+1:
		return fmt.Errorf("%w: the log starts at height %d, and the stored state is that of height %d", ErrGap, oldest, height)
	}
	for e, err := range r.o.Log.Since(r.id, height) {
		if err := cmp.Or(err, ctx.Err()); err != nil {
			return err
		}
		u, err := avlstar.DecodeUpdate(e.Update)
		if err != nil {
			return fmt.Errorf("%w: the logged update of height %d: %w", ErrDamaged, e.Height, err)
		}
		v, err := r.apply(r.newest(), u, len(e.Update))
		if errors.Is(err, avlstar.ErrOtherState) {
			return fmt.Errorf("%w: the logged update of height %d does not apply to the state before it: %w", ErrDamaged, e.Height, err)
		} else if err != nil {
			return fmt.Errorf("the logged update of height %d: %w", e.Height, err)
		}
		r.mu.versions = append(r.mu.versions, v)
		if err := r.retire(r.o.ServeHeights); err != nil {
			return err
		}
		r.recovered.Replayed++
	}
	return nil
}

// Recovered returns what the replica was opened from.
func (r *Replica) Recovered() Recovered { return r.recovered }
