package treestore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/pages"
	"github.com/starling-kv/starling/storage/sgc"
)

// progressEvery is the interval of progress messages.
const progressEvery = 3 * time.Second

// Options configure a Store.
type Options struct {
	Zone   *storage.Zone // required; the caller closes it last
	Logger log.Logger    // default: silent
	// ChainID is the chain whose states are stored and loaded; "": the chain in the parameters of
	// the state itself.
	ChainID string
	// Failed is called when the zone refuses a block or cannot be read, so that the node stops.
	// Default: no call.
	Failed func(error)
	// Cache stores pages and is shared with the block zone. nil: the whole tree stays in memory,
	// and a start reads all leaves.
	Cache *sgc.Cache
	// InMemory keeps the whole tree in memory. With a Cache, a start reads only the page list, and
	// the tree is filled while it is used.
	InMemory bool
	// Index enables the hash index of keys in memory (avlstar.Version.EnableIndex).
	Index bool
}

// Snapshots decides which states are kept on disk as pins. *statesync.Manager implements it.
type Snapshots interface {
	// Due reports whether the state after block height should be kept as a pin.
	Due(height int64) bool
	// PinData returns the description of that state, v, for its pin. The flusher calls it; v stays
	// retained during the call.
	PinData(height int64, v *avlstar.Version) []byte
}

// Store is the application's Store over package storage: the tree is in memory, and the leaves and
// heights of inner nodes are written to disk asynchronously. A block that waits to be written holds
// a reference to its version until the zone has copied the heights, which happens soon.
//
//	Commit(H) ──changes, v, base──► storage's queue ──flusher──► disk: the safe height
//	                                                     │
//	                                                     └── H a snapshot: kept as a pin, with Snapshots' description of it
type Store struct {
	zone      *storage.Zone
	log       log.Logger
	chainID   string
	failed    func(error)
	index     bool
	pages     *pages.Pages           // nil: there is no page list
	inMemory  bool                   // no page leaves memory
	filler    atomic.Pointer[filler] // nil: no state in memory was loaded
	keeper    *keeper                // used if pages leave memory
	scrubber  pages.Scrubber[*avlstar.Version]
	snapshots Snapshots // nil: no state is kept; set before the first block
	list      pages.ListWriter[*avlstar.Version]
	fillBytes uint64 // default: fillBytes
	// pinning is set while a pin waits to be written. No second pin is made meanwhile: each pin
	// costs a flush, so not all snapshots are stored if they are more frequent than flushes.
	pinning atomic.Bool
}

var _ app.Store = (*Store)(nil)

// New returns a store over an open zone.
func New(o Options) *Store {
	s := &Store{zone: o.Zone, log: o.Logger, chainID: o.ChainID, failed: o.Failed, index: o.Index, keeper: newKeeper(),
		inMemory: o.InMemory || o.Cache == nil, fillBytes: fillBytes}
	if s.log == nil {
		s.log = log.NewNopLogger()
	}
	if s.failed == nil {
		s.failed = func(error) {}
	}
	if o.Cache != nil {
		s.pages = &pages.Pages{Zone: o.Zone, Cache: o.Cache, Failed: s.failed, Logger: s.log}
	}
	s.readPages(!s.inMemory)
	return s
}

// readPages sets whether future versions may read pages (storage.Zone.ReadUpTo).
func (s *Store) readPages(may bool) {
	upTo := int64(0)
	if may {
		upTo = math.MaxInt64
	}
	s.zone.ReadUpTo(upTo)
}

// SetSnapshots sets the policy for pins. It must be called before the first Commit.
func (s *Store) SetSnapshots(of Snapshots) { s.snapshots = of }

// Close waits until no page is being read for the filler, which then ends. The zone stays open.
func (s *Store) Close() { s.filler.Load().end() }

// Filling reports whether pages that are to be in memory may not be there yet.
func (s *Store) Filling() bool { return s.filler.Load().isActive() }

// Whole returns a version of the state of v, the newest version, that is completely in memory; the
// caller releases it before the next block. It returns nil if pages leave memory. Until the filler
// has ended, it reads what is missing. Errors: that of ctx, and read errors.
func (s *Store) Whole(ctx context.Context, v *avlstar.Version) (*avlstar.Version, error) {
	if !s.inMemory {
		return nil, nil //nolint:nilnil // documented
	}
	v.Retain()
	if !s.Filling() {
		return v, nil
	}
	return s.filler.Load().whole(ctx, v)
}

// Load rebuilds the tree and compares its app hash with the stored one. A store with a cache reads
// only the page list, if there is one; pages are then verified when they are read, and by Scrub or
// by the filler. Otherwise Load reads all leaves. Errors: app.ErrOtherChain, storage.ErrCorrupt
// with a remedy, and read errors.
func (s *Store) Load() (int64, *avlstar.Version, error) {
	meta, ok := s.zone.Meta()
	if !ok {
		return 0, nil, nil
	}
	if s.chainID != "" && meta.ChainID != s.chainID {
		return 0, nil, fmt.Errorf("%w: the state is of chain %q at height %d, the genesis file of chain %q: put the right genesis file back, or give --home another folder",
			app.ErrOtherChain, meta.ChainID, meta.Height, s.chainID)
	}
	started := time.Now()
	v := s.fromPageList(meta)
	listed := v != nil
	if !listed {
		var err error
		if v, err = s.read(context.Background(), meta, s.progress(started)); err != nil {
			return 0, nil, err
		}
	}
	s.begin(meta.Height, v, listed)
	s.log.Info("Rebuilt the tree", "height", meta.Height, "keys", v.Len(), "bytes", v.Root().Bytes, "page_list", listed, "seconds", seconds(started))
	return meta.Height, v, nil
}

// begin continues from v, which is durable and not shared yet. listed: its page list is on disk.
func (s *Store) begin(height int64, v *avlstar.Version, listed bool) {
	s.list.Begin(listed)
	if s.index {
		v.EnableIndex()
	}
	switch {
	case !s.inMemory:
		s.keeper.begin(height)
		s.keeper.give(v, s.pages, s.zone, height)
	case s.pages != nil:
		s.filler.Load().end()
		f := newFiller(s, v, listed)
		s.filler.Store(f)
		f.fill(height, v)
	}
}

// progress returns a function that logs the progress of rebuilding the tree.
func (s *Store) progress(started time.Time) func(done uint64) {
	logged := started
	return func(done uint64) {
		if time.Since(logged) > progressEvery {
			logged = time.Now()
			s.log.Info("Rebuilding the tree", "keys", done, "seconds", seconds(started))
		}
	}
}

func seconds(since time.Time) float64 {
	return time.Since(since).Round(10 * time.Millisecond).Seconds()
}

// Commit implements app.Store. It passes the changed leaves to the zone, which copies the heights
// of new inner nodes right afterwards.
func (s *Store) Commit(height int64, v, base *avlstar.Version, changes []avlstar.Change) error {
	err := s.commit(height, v, base, changes)
	if err != nil {
		s.failed(err)
	}
	return err
}

func (s *Store) commit(height int64, v, base *avlstar.Version, changes []avlstar.Change) error {
	meta, err := s.meta(height, v)
	if err != nil {
		return err
	}
	p := &pending{store: s, height: height, v: v, base: base}
	p.pins = s.snapshots != nil && s.snapshots.Due(height) && s.pinning.CompareAndSwap(false, true)
	// The changes of the first commit are part of v's memory (app.Store), and a pin describes v.
	p.keeps = base == nil || p.pins
	block := storage.Block{Meta: meta, Pin: p.pins, Owner: p}
	if s.pages != nil {
		p.list = s.list.Next(height, v.Len(), v, base)
		block.NewPageList = p.list.Whole()
	}
	for _, c := range changes {
		if c.Value == nil {
			block.Deletes = append(block.Deletes, c.Key)
		} else {
			block.Puts = append(block.Puts, record.Leaf{Key: c.Key, Value: c.Value})
		}
	}
	if base == nil && s.index {
		v.EnableIndex()
	}
	if !s.inMemory {
		if base == nil {
			v.EnablePaging(s.paging())
			s.keeper.begin(height)
		}
		s.keeper.block(height, block.Deletes)
		if v != base { // otherwise it has records already
			s.keeper.give(v, s.pages, s.zone, height)
		}
		account(s.pages.Cache, v)
	}
	v.Retain()
	if err := s.zone.Write(block); err != nil {
		p.Done(false)
		s.list.Begin(false)
		return err
	}
	s.filler.Load().fill(height, v)
	return nil
}

// pending is a block that is not durable yet. It holds one reference to its version, until the zone
// has copied the heights or, with keeps, until the block is durable.
type pending struct {
	store    *Store
	height   int64
	v        *avlstar.Version
	base     *avlstar.Version // may have been released; nil: v is the first state of the chain
	list     pages.ListPart[*avlstar.Version]
	pins     bool
	keeps    bool
	released bool
}

var _ storage.Owner = (*pending)(nil)

// Take implements storage.Owner. The first state of a chain has no base, so it passes all heights.
func (p *pending) Take(height func(key []byte, height uint8), page func(key, record []byte)) {
	for key, h := range p.v.NewInner(p.base) {
		height(key, h)
	}
	p.list.Take(page)
	p.list.Release()
	if !p.keeps {
		p.release()
	}
}

// PinData implements storage.Owner.
func (p *pending) PinData() []byte { return p.store.snapshots.PinData(p.height, p.v) }

// Done implements storage.Owner.
func (p *pending) Done(durable bool) {
	if durable && !p.store.inMemory {
		p.v.Stored()
	}
	if p.release(); p.pins {
		p.store.pinning.Store(false)
	}
}

func (p *pending) release() {
	p.list.Release()
	if !p.released {
		p.released = true
		p.v.Release()
	}
}

// Durable implements app.Store. It returns the durable height of the zone.
func (s *Store) Durable() int64 { return s.zone.Safe() }

// OpenPin opens a stored snapshot, for statesync.Options.
func (s *Store) OpenPin(height int64) (statesync.Pin, error) { return s.zone.OpenPin(height) }

// meta describes a state. If the chain is unknown, it is taken from the parameters of the state
// itself.
func (s *Store) meta(height int64, v *avlstar.Version) (storage.Meta, error) {
	hash := v.AppHash()
	m := storage.Meta{Height: height, AppHash: hash[:], ChunkBytes: v.ChunkBytes(), ChainID: s.chainID}
	if m.ChainID == "" {
		params, err := app.ReadParams(v)
		if err != nil {
			return storage.Meta{}, err
		}
		m.ChainID = params.ChainId
	}
	return m, nil
}

// Damaged returns err as a storage.ErrCorrupt with a remedy. Errors of the zone already have one.
func Damaged(err error) error {
	if errors.Is(err, storage.ErrCorrupt) {
		return err
	}
	return fmt.Errorf("the state is %w: %w: remove it with `starlingd unsafe-reset-all` and join again by state sync", storage.ErrCorrupt, err)
}
