package node

import (
	"errors"
	"sync/atomic"

	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/sgc"
)

// pages brings back the pages of a tree that is larger than its memory: from the cache that it shares with the block zone, else from the
// state zone.
//
//	reader, Apply ──stub, key range──► cache ──miss──► state zone: newest state, then older ones that are kept
//	                                     ▲                   │ records
//	                                     └── verified page ◄─┘ avlstar.VerifyPage
//
// A page is known by its hash, so what is in the cache is right for every version that has it, whatever was written since.
type pages struct {
	zone   *storage.State
	cache  *sgc.Cache
	failed func(error) // told of a page that cannot be had; nil: nobody
	log    log.Logger

	read, bytes atomic.Int64 // from the zone
}

var _ avlstar.Pages = (*pages)(nil)

// Page implements avlstar.Pages.
func (p *pages) Page(s avlstar.Subtree) (*avlstar.Page, error) {
	if page, ok := p.cache.Get(sgc.State, s.Hash[:]); ok {
		return page.(*avlstar.Page), nil
	}
	var (
		page    *avlstar.Page
		refused error
	)
	err := p.zone.Page(s.First, s.After, s.Bytes, func(records []byte) bool {
		page, refused = avlstar.VerifyPage(s.Stub, records)
		return refused == nil
	})
	switch {
	case errors.Is(err, storage.ErrNoPage): // a version too old to be kept, or damage that no checksum shows
		err = errors.Join(err, refused)
		p.log.Error("A part of the state cannot be read", "root", s.Hash, "err", err)
		return nil, err
	case err != nil:
		if p.failed != nil {
			p.failed(err)
		}
		return nil, err
	}
	p.read.Add(1)
	p.bytes.Add(int64(s.Bytes))
	p.cache.Put(sgc.State, s.Hash[:], page.Compact(), page.Size())
	return page, nil
}

// paging is what a tree over these pages is told. It takes half of what the zone may use, its pages in the cache the rest.
func (p *pages) paging() avlstar.Paging {
	return avlstar.Paging{
		Pages:   p,
		Budget:  func() int64 { return p.cache.Target(sgc.State) / 2 },
		Evicted: func(s avlstar.Stub) { p.cache.Evicted(sgc.State, s.Hash[:], int(s.Bytes)) },
	}
}

// account tells the cache what memory the tree of v takes outside of it.
func (p *pages) account(v *avlstar.Version) {
	m := v.Memory()
	// At most the tree's half: its memory has gaps that fill again, and pages read need a place.
	p.cache.SetOther(sgc.State, min(int64(m.NodeBytes+m.LeafBytes), p.cache.Target(sgc.State)/2))
}
