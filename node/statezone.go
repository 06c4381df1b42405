package node

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
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/storage"
)

// ErrOtherChain: the data in the home folder belongs to another chain, or to another genesis of it.
var ErrOtherChain = errors.New("data of another chain")

// progressEvery is the time between two log lines of something that takes long.
const progressEvery = 3 * time.Second

// stateZone is the application's Store over package storage: the tree in memory, leaves and heights of inner nodes on disk, where they
// follow behind. What waits to be written holds references to the versions it is made from.
//
//	Commit(H) ──changes, v, base──► storage's queue ──flusher──► disk: the safe height
//	                                                     │
//	                                                     └── H a snapshot: kept as a pin, with the Manager's description of it
type stateZone struct {
	state   *storage.State
	log     log.Logger
	chainID string      // "": not known
	failed  func(error) // told of a commit that the zone does not take
	// snapshots says which states are kept on disk as pins; nil: none. Set before the first block.
	snapshots *statesync.Manager
	pages     *pages // nil: all of the state stays in memory
	// pinning: one waits to be kept. There is no second one meanwhile: a pin ends the flush, so where snapshots follow each other faster
	// than that, not all of them are worth it.
	pinning atomic.Bool
}

var _ app.Store = (*stateZone)(nil)

// Load rebuilds the tree in one linear pass and compares it with the app hash that was stored with it.
func (z *stateZone) Load() (int64, *avlstar.Version, error) {
	meta, ok := z.state.Meta()
	if !ok {
		return 0, nil, nil
	}
	if z.chainID != "" && meta.ChainID != z.chainID {
		return 0, nil, fmt.Errorf("%w: the state is of chain %q at height %d, the genesis file of chain %q: put the right genesis file back, or give --home another folder",
			ErrOtherChain, meta.ChainID, meta.Height, z.chainID)
	}
	started := time.Now()
	v, err := z.build(meta.ChunkBytes, started)
	if err != nil {
		return 0, nil, damaged(err)
	}
	if hash := v.AppHash(); !bytes.Equal(hash[:], meta.AppHash) {
		v.Release()
		return 0, nil, damaged(fmt.Errorf("its app hash is %s, it was %x when it was stored", hash, meta.AppHash))
	}
	z.log.Info("Rebuilt the tree", "height", meta.Height, "keys", v.Len(), "bytes", v.Root().Bytes, "seconds", seconds(started))
	return meta.Height, v, nil
}

// build makes the tree of what is on disk: all of it in memory, or what lies above pages.
func (z *stateZone) build(chunkBytes uint64, started time.Time) (*avlstar.Version, error) {
	if z.pages == nil {
		return avlstar.FromLeaves(chunkBytes, z.leaves(started))
	}
	v, err := avlstar.FromLeavesPaged(chunkBytes, z.pages.paging(), z.leaves(started))
	if err == nil {
		z.pages.account(v)
	}
	return v, err
}

// damaged says what the way out is. The zone's own errors name the file, and say so themselves.
func damaged(err error) error {
	if errors.Is(err, storage.ErrCorrupt) {
		return err
	}
	return fmt.Errorf("the state is %w: %w: remove it with `starlingd unsafe-reset-all` and join again by state sync", storage.ErrCorrupt, err)
}

// leaves yields what is on disk, and says now and then how far it is.
func (z *stateZone) leaves(started time.Time) iter.Seq2[avlstar.Leaf, error] {
	return func(yield func(avlstar.Leaf, error) bool) {
		keys, said := 0, started
		for l, err := range z.state.Scan() {
			if !yield(avlstar.Leaf(l), err) {
				return
			}
			if keys++; keys%(1<<14) == 0 && time.Since(said) > progressEvery {
				said = time.Now()
				z.log.Info("Rebuilding the tree", "keys", keys, "seconds", seconds(started))
			}
		}
	}
}

func seconds(since time.Time) float64 {
	return time.Since(since).Round(10 * time.Millisecond).Seconds()
}

// Commit hands a block's changes over: the changed leaves now, the heights of the inner nodes that are new when they are written.
func (z *stateZone) Commit(height int64, v, base *avlstar.Version, changes []avlstar.Change) error {
	err := z.commit(height, v, base, changes)
	if err != nil && z.failed != nil {
		z.failed(err)
	}
	return err
}

func (z *stateZone) commit(height int64, v, base *avlstar.Version, changes []avlstar.Change) error {
	meta, err := metaOf(height, v)
	if err != nil {
		return err
	}
	block := storage.Block{Meta: meta}
	for _, c := range changes {
		if c.Value == nil {
			block.Deletes = append(block.Deletes, c.Key)
		} else {
			block.Puts = append(block.Puts, storage.Leaf{Key: c.Key, Value: c.Value})
		}
	}
	block.Heights = func(yield func(storage.Height) bool) {
		for key, h := range v.NewInner(base) { // all of them at the first commit, which carries every key and has no base
			if !yield(storage.Height{Key: key, Height: h}) {
				return
			}
		}
	}
	pins := z.snapshots != nil && z.snapshots.Due(height) && z.pinning.CompareAndSwap(false, true)
	if pins {
		block.PinData = func() []byte { return z.snapshots.PinData(height, v) }
	}
	if z.pages != nil {
		if base == nil {
			v.EnablePaging(z.pages.paging())
		}
		z.pages.account(v)
	}
	v.Retain()
	if base != nil {
		base.Retain()
	}
	block.Done = func() {
		if z.pages != nil && z.state.Safe() >= height {
			v.Stored()
		}
		v.Release()
		if base != nil {
			base.Release()
		}
		if pins {
			z.pinning.Store(false)
		}
	}
	if err := z.state.Write(block); err != nil {
		block.Done()
		return err
	}
	return nil
}

// Durable is the safe height.
func (z *stateZone) Durable() int64 { return z.state.Safe() }

// openPin opens a stored snapshot for the Manager.
func (z *stateZone) openPin(height int64) (statesync.Pin, error) { return z.state.OpenPin(height) }

// metaOf describes a state; the chain id stands in the state's own parameters.
func metaOf(height int64, v *avlstar.Version) (storage.Meta, error) {
	params, err := app.ReadParams(v)
	if err != nil {
		return storage.Meta{}, err
	}
	hash := v.AppHash()
	return storage.Meta{Height: height, AppHash: hash[:], ChunkBytes: v.ChunkBytes(), ChainID: params.ChainId}, nil
}
