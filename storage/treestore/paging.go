package treestore

import (
	"context"
	"errors"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/storage/pages"
	"github.com/starling-kv/starling/storage/sgc"
)

// pagingBy returns the paging options of a tree: the tree takes half of the zone's share of the
// cache, its pages the rest.
func pagingBy(p *pages.Pages) *avlstar.Paging {
	return &avlstar.Paging{
		Pages:   p,
		Budget:  func() int64 { return p.Cache.Target(sgc.State) / 2 },
		Evicted: p.Evicted,
	}
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
// Options.Failed and ends Scrub. It may be called once, and has no effect if the store is not
// paged.
func (s *Store) Scrub(ctx context.Context, latest func() *avlstar.Version, bytesPerSecond int64) {
	if s.pages == nil {
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
