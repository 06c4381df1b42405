package serve

import (
	"errors"
	"sync"
	"sync/atomic"

	dbm "github.com/cosmos/cosmos-db"

	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/cosmos/tables"
)

var errUnsupported = errors.New("unsupported database: only snapshots of goleveldb and Pebble can be served")

var errReleased = errors.New("the state is no longer served")

// frozen is a snapshot of a database, as a read-only nodedb.DB. Later pruning of the database does
// not change it.
type frozen struct {
	nodedb.DB // the snapshot
	free      func() error
	gate      *gate
	gets      atomic.Int64 // number of Get calls

	mu       sync.Mutex
	users    int  // reads under way and open iterators; guarded by mu
	released bool // guarded by mu
}

// freeze takes a snapshot of a database, in less than a millisecond. Reads of it yield at g.
func freeze(db dbm.DB, g *gate) (*frozen, error) {
	switch db := db.(type) {
	case *dbm.GoLevelDB:
		s, err := db.DB().GetSnapshot()
		if err != nil {
			return nil, err
		}
		return &frozen{DB: tables.ReadGoLevelDB(s), free: func() error { s.Release(); return nil }, gate: g}, nil
	case *dbm.PebbleDB:
		s := db.DB().NewSnapshot()
		return &frozen{DB: tables.ReadPebble(s), free: s.Close, gate: g}, nil
	}
	return nil, errUnsupported
}

func (f *frozen) enter() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.released {
		return errReleased
	}
	f.users++
	return nil
}

func (f *frozen) leave() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.users--
	return f.freeUnused()
}

func (f *frozen) freeUnused() error {
	if !f.released || f.users > 0 {
		return nil
	}
	return f.free()
}

// release makes later reads fail, and frees the snapshot once reads in progress and iterators end.
func (f *frozen) release() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.released {
		return nil
	}
	f.released = true
	return f.freeUnused()
}

func (f *frozen) isReleased() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.released
}

// Get implements nodedb.DB.
func (f *frozen) Get(key []byte) ([]byte, error) {
	if f.gets.Add(1)%giveWayEvery == 0 {
		f.gate.giveWay()
	}
	if err := f.enter(); err != nil {
		return nil, err
	}
	v, err := f.DB.Get(key)
	return v, errors.Join(err, f.leave())
}

// Iterator implements nodedb.DB.
func (f *frozen) Iterator(start, end []byte) (nodedb.Iterator, error) {
	if err := f.enter(); err != nil {
		return nil, err
	}
	it, err := f.DB.Iterator(start, end)
	if err != nil {
		return nil, errors.Join(err, f.leave())
	}
	return &held{Iterator: it, f: f}, nil
}

// held is an iterator that keeps its snapshot from being freed. It ends soon after the snapshot's
// release, since an iteration over all records of a large store takes minutes.
type held struct {
	nodedb.Iterator
	f       *frozen
	steps   int
	stopped bool
}

const heldSteps = 1 << 10 // calls of Next between checks for the snapshot's release

func (h *held) Next() {
	if h.steps++; h.steps%giveWayEvery == 0 {
		h.f.gate.giveWay()
	}
	if h.steps%heldSteps == 0 && h.f.isReleased() {
		h.stopped = true
		return
	}
	h.Iterator.Next()
}

func (h *held) Valid() bool { return !h.stopped && h.Iterator.Valid() }

func (h *held) Error() error {
	if h.stopped {
		return errReleased
	}
	return h.Iterator.Error()
}

func (h *held) Close() error { return errors.Join(h.Iterator.Close(), h.f.leave()) }
