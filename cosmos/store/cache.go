package store

import (
	"github.com/cosmos/cosmos-sdk/store/v2/cachekv"
	"github.com/cosmos/cosmos-sdk/store/v2/types"
)

// Cache is the SDK's cache over a Starling store, with the store's limits: Set panics if the
// store's Set would. The SDK's own cache would accept the value, and every node would panic later,
// when it writes the block.
type Cache struct{ *cachekv.Store }

// NewCache returns an empty cache over parent: a Store, another Cache, or a listening store that
// wraps one of them.
func NewCache(parent types.KVStore) Cache { return Cache{cachekv.NewStore(parent)} }

// Set implements types.KVStore.
func (c Cache) Set(key, value []byte) {
	AssertValid(key, value)
	c.Store.Set(key, value)
}

// CacheWrap implements types.CacheWrapper.
func (c Cache) CacheWrap() types.CacheWrap { return NewCache(c) }
