package node

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/storage"
)

// ErrOtherChain: the data in the home folder belongs to another chain, or to another genesis of it.
var ErrOtherChain = errors.New("data of another chain")

// progressEvery is the time between two log lines of something that takes long.
const progressEvery = 3 * time.Second

// stateZone is the application's Store over package storage: leaves and heights of inner nodes on disk, the tree in memory.
type stateZone struct {
	state   *storage.State
	log     log.Logger
	chainID string      // "": not known
	failed  func(error) // told of a commit that did not become durable
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
	v, err := avlstar.FromLeaves(meta.ChunkBytes, z.leaves(started))
	if err != nil {
		return 0, nil, z.damaged(err)
	}
	if hash := v.AppHash(); !bytes.Equal(hash[:], meta.AppHash) {
		return 0, nil, z.damaged(fmt.Errorf("its app hash is %s, it was %x when it was stored", hash, meta.AppHash))
	}
	z.log.Info("Rebuilt the tree", "height", meta.Height, "keys", v.Len(), "bytes", v.Root().Bytes, "seconds", seconds(started))
	return meta.Height, v, nil
}

func (z *stateZone) damaged(err error) error {
	return fmt.Errorf("the state on disk is damaged: %w: remove it with `starlingd unsafe-reset-all` and join again by state sync", err)
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

// Commit writes a block's changes in one synced batch: the changed leaves, and the heights of the inner nodes that are new.
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
	batch := storage.Batch{Meta: meta}
	for _, c := range changes {
		if c.Value == nil {
			batch.Deletes = append(batch.Deletes, c.Key)
		} else {
			batch.Puts = append(batch.Puts, storage.Leaf{Key: c.Key, Value: c.Value})
		}
	}
	for key, h := range v.NewInner(base) { // all of them at the first commit, which carries every key and has no base
		batch.Heights = append(batch.Heights, storage.Height{Key: key, Height: h})
	}
	return z.state.Write(batch)
}

// metaOf describes a state; the chain id stands in the state's own parameters.
func metaOf(height int64, v *avlstar.Version) (storage.Meta, error) {
	params, err := app.ReadParams(v)
	if err != nil {
		return storage.Meta{}, err
	}
	hash := v.AppHash()
	return storage.Meta{Height: height, AppHash: hash[:], ChunkBytes: v.ChunkBytes(), ChainID: params.ChainId}, nil
}
