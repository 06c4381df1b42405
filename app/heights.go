package app

import (
	"errors"

	"github.com/starling-kv/starling/avlstar"
)

// Errors of Extend: no older state is wanted.
var (
	// ErrEnoughStates: Options.KeepRecent states answer queries.
	ErrEnoughStates = errors.New("there are keep_recent states")
	// ErrStatesTooLarge: with one more, they would take more than Options.KeepRecentBytes.
	ErrStatesTooLarge = errors.New("one more would take more than keep_recent_bytes")
	// ErrStatesMoved: the oldest state that answers queries is another one by now.
	ErrStatesMoved = errors.New("the oldest state is another one by now")
)

// OldestVersion returns the oldest state that answers queries, which the caller releases: height 0
// and nil if there is none.
func (a *App) OldestVersion() (height int64, v *avlstar.Version) {
	for {
		p := a.published.Load()
		if len(p.recent) == 0 {
			return 0, nil
		}
		if c := p.recent[0]; c.version.TryRetain() {
			return c.height, c.version
		}
		// It was released after it was found: by now published is a newer one.
	}
}

// WantsOlder returns an error of Extend if a state before the oldest one would not be taken,
// whatever memory it takes.
func (a *App) WantsOlder() error {
	if len(a.published.Load().recent) >= a.options.KeepRecent {
		return ErrEnoughStates
	}
	return nil
}

// Extend lets v, the state after height, answer queries too. That must be the height before the
// oldest that does. v was verified by the caller: nobody looks at it again before it is served. The
// application retains v, and gives it up as any other when it is too old. While a block is being
// executed, Extend waits. Errors: ErrEnoughStates, ErrStatesTooLarge, ErrStatesMoved.
func (a *App) Extend(height int64, v *avlstar.Version) error {
	a.block.Lock()
	defer a.block.Unlock()
	old := a.published.Load()
	switch {
	case len(old.recent) == 0 || old.recent[0].height != height+1:
		return ErrStatesMoved
	case len(old.recent) >= a.options.KeepRecent:
		return ErrEnoughStates
	}
	recent := append([]committed{{height, v}}, old.recent...)
	if limit := a.options.KeepRecentBytes; limit > 0 && held(recent) > limit {
		return ErrStatesTooLarge
	}
	v.Retain()
	a.published.Store(&published{height: old.height, recent: recent})
	a.options.Metrics.OldestHeight.Set(float64(height))
	return nil
}

// held returns what recent versions hold together, in bytes: see Options.drop.
func held(recent []committed) (sum uint64) {
	for i, c := range recent {
		if i == len(recent)-1 || c.version != recent[i+1].version {
			sum += c.version.HeldBytes()
		}
	}
	return sum
}
