package treestore

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"time"

	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/sgc"
)

// progressEvery is the time between two log lines of something that takes long.
const progressEvery = 3 * time.Second

// Options of a Store.
type Options struct {
	Zone   *storage.Zone // required; the caller closes it, after everything else
	Logger log.Logger    // default: silent
	// ChainID is the chain whose states are stored and loaded; "": the one that a state's own
	// parameters name.
	ChainID string
	// Failed is told of what the zone does not take, or cannot read, so that the node stops.
	// Default: nobody.
	Failed func(error)
	// Cache is where pages are kept, shared with the block zone. nil: the whole tree stays in
	// memory.
	Cache *sgc.Cache
	// Undo takes, for each block, the record by which a program that has its state makes the one
	// before it. nil: nobody.
	Undo Undo
	// Index: keys in memory are found by their hashes (avlstar.Version.EnableIndex).
	Index bool
}

// Snapshots decides which states stay on disk as pins. *statesync.Manager does.
type Snapshots interface {
	// Due reports whether the state after block height is worth a pin.
	Due(height int64) bool
	// PinData describes that state, v, for its pin. The flusher's goroutine calls it; v is retained
	// meanwhile.
	PinData(height int64, v *avlstar.Version) []byte
}

// Undo keeps undo records. *undo.Log does.
type Undo interface {
	// Put takes the record of a block. It is called before the block's state becomes durable, by
	// several goroutines.
	Put(height int64, record []byte)
}

// Store is the application's Store over package storage: the tree in memory, leaves and heights of
// inner nodes on disk, which follows behind. A block that waits to be written holds a reference to
// its version until the zone has taken the heights from it, which is soon.
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
	undo      Undo    // nil: none is kept
	pages     *Pages  // nil: all of the state stays in memory
	keeper    *keeper // of the versions that are made, where there are pages
	scrubber  scrubber
	snapshots Snapshots // nil: no state is kept; set before the first block
	// pinning: one pin waits to be written. There is no second one meanwhile: a pin ends the flush,
	// so where snapshots follow each other faster than that, not all of them are worth it.
	pinning atomic.Bool
}

var _ app.Store = (*Store)(nil)

// New makes a store over a zone that is open.
func New(o Options) *Store {
	s := &Store{zone: o.Zone, log: o.Logger, chainID: o.ChainID, failed: o.Failed, index: o.Index, undo: o.Undo, keeper: newKeeper()}
	if s.log == nil {
		s.log = log.NewNopLogger()
	}
	if s.failed == nil {
		s.failed = func(error) {}
	}
	if o.Cache != nil {
		s.pages = &Pages{Zone: o.Zone, Cache: o.Cache, Failed: s.failed, Logger: s.log}
	}
	return s
}

// SetSnapshots sets what decides on pins. It comes before the first Commit.
func (s *Store) SetSnapshots(of Snapshots) { s.snapshots = of }

// Paged reports whether parts of the tree may leave memory.
func (s *Store) Paged() bool { return s.pages != nil }

// Load rebuilds the tree in one linear pass and compares it with the app hash that was stored with
// it. Errors: app.ErrOtherChain, and storage.ErrCorrupt with the way out.
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
	v, err := s.build(meta.ChunkBytes, started)
	if err != nil {
		return 0, nil, Damaged(err)
	}
	if hash := v.AppHash(); !bytes.Equal(hash[:], meta.AppHash) {
		v.Release()
		return 0, nil, Damaged(fmt.Errorf("its app hash is %s, it was %x when it was stored", hash, meta.AppHash))
	}
	s.begin(meta.Height, v)
	s.log.Info("Rebuilt the tree", "height", meta.Height, "keys", v.Len(), "bytes", v.Root().Bytes, "seconds", seconds(started))
	return meta.Height, v, nil
}

// begin continues from v, which is durable and which nobody else has yet.
func (s *Store) begin(height int64, v *avlstar.Version) {
	if s.index {
		v.EnableIndex()
	}
	if s.pages != nil {
		s.keeper.begin(height)
		s.keeper.give(v, s.pages, s.zone, height)
	}
}

// build makes the tree of what is on disk: all of it in memory, or what lies above pages.
func (s *Store) build(chunkBytes uint64, started time.Time) (*avlstar.Version, error) {
	if s.pages == nil {
		return avlstar.FromLeaves(chunkBytes, s.leaves(started))
	}
	v, err := avlstar.FromLeavesPaged(chunkBytes, s.pages.paging(), s.leaves(started))
	if err == nil {
		s.pages.account(v)
	}
	return v, err
}

// leaves yields what is on disk, and logs now and then how far it is.
func (s *Store) leaves(started time.Time) iter.Seq2[avlstar.Leaf, error] {
	return func(yield func(avlstar.Leaf, error) bool) {
		keys, said := 0, started
		for l, err := range s.zone.Scan() {
			if !yield(l, err) {
				return
			}
			if keys++; keys%(1<<14) == 0 && time.Since(said) > progressEvery {
				said = time.Now()
				s.log.Info("Rebuilding the tree", "keys", keys, "seconds", seconds(started))
			}
		}
	}
}

func seconds(since time.Time) float64 {
	return time.Since(since).Round(10 * time.Millisecond).Seconds()
}

// Commit implements app.Store: it hands the changed leaves over now; the zone collects the heights
// of the inner nodes that are new right behind it.
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
	block := storage.Block{Meta: meta}
	for _, c := range changes {
		if c.Value == nil {
			block.Deletes = append(block.Deletes, c.Key)
		} else {
			block.Puts = append(block.Puts, record.Leaf{Key: c.Key, Value: c.Value})
		}
	}
	// all of them at the first commit, which carries every key and has no base
	block.Heights = v.NewInner(base)
	pins := s.snapshots != nil && s.snapshots.Due(height) && s.pinning.CompareAndSwap(false, true)
	if pins {
		block.PinData = func() []byte { return s.snapshots.PinData(height, v) }
	}
	if base == nil && s.index {
		v.EnableIndex()
	}
	if s.pages != nil {
		if base == nil {
			v.EnablePaging(s.pages.paging())
			s.keeper.begin(height)
		}
		s.keeper.block(height, block.Deletes)
		if v != base { // else it has them
			s.keeper.give(v, s.pages, s.zone, height)
		}
		s.pages.account(v)
	}
	v.Retain()
	block.Taken = v.Release
	if s.undo != nil && base != nil {
		base.Retain()
		block.Heights = s.withUndo(block.Heights, height, v, base, changes)
		block.Taken = func() {
			v.Release()
			base.Release()
		}
	}
	// The changes of the first commit are v's own memory (app.Store), and a pin describes v.
	keeps := base == nil || pins
	if keeps {
		v.Retain()
	}
	block.Done = func() {
		if s.pages != nil && s.zone.Safe() >= height {
			v.Stored()
		}
		if keeps {
			v.Release()
		}
		if pins {
			s.pinning.Store(false)
		}
	}
	if err := s.zone.Write(block); err != nil {
		block.Taken()
		block.Done()
		return err
	}
	return nil
}

// withUndo yields what heights does and then, behind the block, makes the undo record. A
// node without it reaches less far back after its next start, and runs as well.
func (s *Store) withUndo(heights iter.Seq2[[]byte, uint8], height int64, v, base *avlstar.Version, changes []avlstar.Change) iter.Seq2[[]byte, uint8] {
	return func(yield func([]byte, uint8) bool) {
		for key, h := range heights {
			if !yield(key, h) {
				return
			}
		}
		u, err := v.Undo(base, changes)
		if err != nil {
			s.log.Error("No undo record is made: the state before this block does not answer queries after the next start", "height", height, "err", err)
			return
		}
		s.undo.Put(height, u.Encode())
	}
}

// Durable implements app.Store: it is the safe height.
func (s *Store) Durable() int64 { return s.zone.Safe() }

// OpenPin opens a stored snapshot, for statesync.Options.
func (s *Store) OpenPin(height int64) (statesync.Pin, error) { return s.zone.OpenPin(height) }

// meta describes a state. Where the chain is not known, it is the one in the state's own
// parameters.
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

// Damaged makes err one that is storage.ErrCorrupt and names the way out. The zone's own errors
// name the file, and do so themselves.
func Damaged(err error) error {
	if errors.Is(err, storage.ErrCorrupt) {
		return err
	}
	return fmt.Errorf("the state is %w: %w: remove it with `starlingd unsafe-reset-all` and join again by state sync", storage.ErrCorrupt, err)
}
