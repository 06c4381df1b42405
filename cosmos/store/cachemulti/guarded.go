package cachemulti

import (
	"io"

	"cosmossdk.io/store/cachekv"
	"cosmossdk.io/store/tracekv"
	"cosmossdk.io/store/types"

	"github.com/starling-kv/starling/cosmos/store"
)

// guarded is the cache of a Starling store. It refuses in Set what the store would refuse: the
// SDK's cache takes it, and so the store would see it only when the block is written, which every
// node would fail at.
type guarded struct{ *cachekv.Store }

// guard returns the cache of a store, whatever its type.
func guard(s *cachekv.Store) types.CacheWrap {
	if s.GetStoreType() == store.Type {
		return guarded{s}
	}
	return s
}

// Set implements types.KVStore. It panics as store.Store does.
func (g guarded) Set(key, value []byte) {
	store.AssertValid(key, value)
	g.Store.Set(key, value)
}

// CacheWrap implements types.CacheWrapper.
func (g guarded) CacheWrap() types.CacheWrap { return guarded{cachekv.NewStore(g)} }

// CacheWrapWithTrace implements types.CacheWrapper.
func (g guarded) CacheWrapWithTrace(w io.Writer, tc types.TraceContext) types.CacheWrap {
	return guarded{cachekv.NewStore(tracekv.NewStore(g, w, tc))}
}
