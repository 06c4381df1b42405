package serve

import (
	dbm "github.com/cosmos/cosmos-db"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/nodedb"
)

// ErrReleased is the error of reads after the snapshot's release.
var ErrReleased = errReleased

// Freeze takes a snapshot of a database.
func Freeze(db dbm.DB) (snapshot nodedb.DB, release func() error, err error) {
	f, err := freeze(db, newGate())
	if err != nil {
		return nil, nil, err
	}
	return f, f.release, nil
}

// Serve serves a state of a database as the goroutine that Commit starts does.
func (a *App) Serve(db nodedb.DB, height int64) error {
	return a.add(&frozen{DB: db, free: func() error { return nil }, gate: a.gate}, height)
}

// ServeUnread serves a state in-band in all formats after reading only its cuts. It replaces all
// served states.
func (a *App) ServeUnread(db nodedb.DB, height int64) (*nodedb.State, error) {
	opened, err := nodedb.Open(db, height)
	if err != nil {
		return nil, err
	}
	s := &state{State: opened, frozen: &frozen{DB: db, free: func() error { return nil }, gate: a.gate}, cuts: map[iavlsync.Format]*cut{}}
	for _, f := range formats {
		if s.cuts[f], err = newCut(opened, f); err != nil {
			return nil, err
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.served = []*state{s}
	return opened, nil
}

// Making reports whether reads currently yield to a block.
func Making(a *App) bool { return a.gate.making.Load() != nil }
