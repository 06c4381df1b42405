package treestore

import (
	"context"
	"errors"
	"math"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/storage/pages"
	"github.com/starling-kv/starling/storage/sgc"
)

// paging returns the paging options of a tree. If pages leave memory, the tree takes half of the
// zone's share of the cache, its pages the rest.
func (s *Store) paging() avlstar.Paging {
	p := s.pages
	if s.inMemory {
		return avlstar.Paging{Pages: p, Budget: func() int64 { return math.MaxInt64 }}
	}
	return avlstar.Paging{Pages: p, Budget: func() int64 { return p.Cache.Target(sgc.State) / 2 }, Evicted: p.Evicted}
}

// account reports the memory of v's tree, which is outside of the cache, to the cache.
func account(cache *sgc.Cache, v *avlstar.Version) {
	m := v.Memory()
	// At most half: the memory of the tree has gaps that fill again, and pages need space.
	cache.SetOther(sgc.State, min(int64(m.NodeBytes+m.LeafBytes), cache.Target(sgc.State)/2))
}

// ScrubStats returns the counters of Scrub.
func (s *Store) ScrubStats() pages.ScrubStats { return s.scrubber.Stats() }

// Scrub repeatedly verifies all pages on disk, at most bytesPerSecond of leaf records, until ctx
// ends. latest returns the newest version, which Scrub releases; nil: none. Damage is reported to
// Options.Failed and ends Scrub. It may be called once, and has no effect if no page leaves memory.
func (s *Store) Scrub(ctx context.Context, latest func() *avlstar.Version, bytesPerSecond int64) {
	if s.inMemory {
		return
	}
	s.scrubber.Pages, s.scrubber.Latest, s.scrubber.Of = s.pages, latest, (*avlstar.Version).Stubs
	err := s.scrubber.Scrub(ctx, bytesPerSecond)
	if errors.Is(err, pages.ErrDamaged) {
		err = Damaged(err)
	}
	if err != nil {
		s.failed(err)
	}
}
