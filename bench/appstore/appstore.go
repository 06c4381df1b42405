// Package appstore has stores for an application without CometBFT:
//
//	Memory             persists nothing
//	Page ──► treestore.Store, as of a node with `state_in_memory = false`
package appstore

import (
	"errors"
	"path/filepath"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/sgc"
	"github.com/starling-kv/starling/storage/treestore"
)

var _ app.Store = (*Memory)(nil)

// Memory is an app.Store that persists nothing. It starts with a state, and keeps the last block's
// changes.
type Memory struct {
	First   *avlstar.Version // nil: none
	Height  int64
	Changes []avlstar.Change
}

// Load implements app.Store.
func (m *Memory) Load() (int64, *avlstar.Version, error) {
	if m.First != nil {
		m.First.Retain()
	}
	return m.Height, m.First, nil
}

// Commit implements app.Store.
func (m *Memory) Commit(height int64, _, _ *avlstar.Version, changes []avlstar.Change) error {
	m.Height, m.Changes = height, changes
	return nil
}

// Durable implements app.Store.
func (m *Memory) Durable() int64 { return m.Height }

// Page writes a state to disk below dir, and opens it like a node with `state_in_memory = false`
// and memoryBytes for all caches. The caller closes the zone after the application has stopped.
func Page(dir, chainID string, height int64, state *avlstar.Version, memoryBytes int64) (*treestore.Store, *storage.Zone, error) {
	so := storage.Options{CacheBytes: memoryBytes / 8, Generations: true}
	dir = filepath.Join(dir, "state")
	zone, err := storage.Open(dir, so)
	if err != nil {
		return nil, nil, err
	}
	var changes []avlstar.Change
	for l, err := range state.Leaves() {
		if err != nil {
			return nil, nil, errors.Join(err, zone.Close())
		}
		changes = append(changes, avlstar.Change{Key: l.Key, Value: l.Value})
	}
	err = treestore.New(treestore.Options{Zone: zone, ChainID: chainID}).Commit(height, state, nil, changes)
	if err := errors.Join(err, zone.Close()); err != nil {
		return nil, nil, err
	}
	if zone, err = storage.Open(dir, so); err != nil {
		return nil, nil, err
	}
	return treestore.New(treestore.Options{Zone: zone, ChainID: chainID, Cache: sgc.New(memoryBytes - 2*so.CacheBytes)}), zone, nil
}
