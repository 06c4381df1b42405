package rootmulti

import (
	"slices"
	"strings"

	dbm "github.com/cosmos/cosmos-db"

	"github.com/cosmos/cosmos-sdk/store/v2/dbadapter"
	"github.com/cosmos/cosmos-sdk/store/v2/listenkv"
	"github.com/cosmos/cosmos-sdk/store/v2/types"

	"github.com/starling-kv/starling/cosmos/store"
)

// AddListeners implements types.CommitMultiStore. A key may be mounted later, as a store of either
// kind. So both multi-stores get a listener for each key, and one of the two is never called.
func (rs *Store) AddListeners(keys []types.StoreKey) {
	rs.sdkStore.AddListeners(keys)
	for _, key := range keys {
		if rs.listeners[key] == nil {
			rs.listeners[key] = types.NewMemoryListener()
		}
	}
}

// PopStateCache implements types.CommitMultiStore.
func (rs *Store) PopStateCache() []*types.StoreKVPair {
	pairs := rs.sdkStore.PopStateCache()
	for _, l := range rs.listeners {
		pairs = append(pairs, l.PopStateCache()...)
	}
	slices.SortStableFunc(pairs, func(a, b *types.StoreKVPair) int { return strings.Compare(a.StoreKey, b.StoreKey) })
	return pairs
}

// listen returns s, wrapped with the listener of key if there is one.
func (rs *Store) listen(key types.StoreKey, s types.KVStore) types.KVStore {
	if l := rs.listeners[key]; l != nil {
		return listenkv.NewStore(s, key, l)
	}
	return s
}

// GetKVStore implements types.MultiStore.
func (rs *Store) GetKVStore(key types.StoreKey) types.KVStore {
	s := rs.stores[key]
	if s == nil {
		return rs.sdkStore.GetKVStore(key)
	}
	return rs.listen(key, s)
}

// CacheMultiStore implements types.MultiStore.
func (rs *Store) CacheMultiStore() types.CacheMultiStore {
	parents := make(map[types.StoreKey]types.KVStore, len(rs.stores))
	for key, s := range rs.stores {
		parents[key] = rs.listen(key, s)
	}
	return newBranch(rs.sdkStore.CacheMultiStore(), parents)
}

// CacheMultiStoreWithVersion implements types.MultiStore. A Starling store that did not exist at
// that version is empty.
func (rs *Store) CacheMultiStoreWithVersion(version int64) (types.CacheMultiStore, error) {
	others, err := rs.sdkStore.CacheMultiStoreWithVersion(version)
	if err != nil {
		return nil, err
	}
	parents := make(map[types.StoreKey]types.KVStore, len(rs.stores))
	for key, s := range rs.stores {
		var past types.KVStore
		past, err := s.GetImmutable(version)
		if err != nil {
			info, infoErr := rs.GetCommitInfo(version)
			if infoErr != nil {
				return nil, infoErr
			}
			if root(info, key.Name()) != nil {
				return nil, err
			}
			past = dbadapter.Store{DB: dbm.NewMemDB()}
		}
		parents[key] = rs.listen(key, past)
	}
	return newBranch(others, parents), nil
}

// CacheWrap implements types.CacheWrapper.
func (rs *Store) CacheWrap() types.CacheWrap { return rs.CacheMultiStore() }

type sdkBranch = types.CacheMultiStore

// branch is a types.CacheMultiStore. It combines the SDK's with caches of the Starling stores. The
// caches reject invalid keys and values in Set, so Write does not fail because of them.
type branch struct {
	sdkBranch // of all other stores

	caches map[types.StoreKey]store.Cache
}

func newBranch(others types.CacheMultiStore, parents map[types.StoreKey]types.KVStore) *branch {
	b := &branch{others, make(map[types.StoreKey]store.Cache, len(parents))}
	for key, parent := range parents {
		b.caches[key] = store.NewCache(parent)
	}
	return b
}

// GetStore implements types.MultiStore.
func (b *branch) GetStore(key types.StoreKey) types.Store {
	if c, ok := b.caches[key]; ok {
		return c
	}
	return b.sdkBranch.GetStore(key)
}

// GetKVStore implements types.MultiStore.
func (b *branch) GetKVStore(key types.StoreKey) types.KVStore {
	if c, ok := b.caches[key]; ok {
		return c
	}
	return b.sdkBranch.GetKVStore(key)
}

// CacheMultiStore implements types.MultiStore.
func (b *branch) CacheMultiStore() types.CacheMultiStore {
	parents := make(map[types.StoreKey]types.KVStore, len(b.caches))
	for key, c := range b.caches {
		parents[key] = c
	}
	return newBranch(b.sdkBranch.CacheMultiStore(), parents)
}

// CacheWrap implements types.CacheWrapper.
func (b *branch) CacheWrap() types.CacheWrap { return b.CacheMultiStore() }

// Write implements types.CacheMultiStore.
func (b *branch) Write() {
	b.sdkBranch.Write()
	for _, c := range b.caches {
		c.Write()
	}
}
