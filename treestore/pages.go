package treestore

import (
	"errors"

	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/sgc"
)

// PageReader reads the records of a key range. *storage.Zone does: Page says what it must do.
type PageReader interface {
	Page(first, after []byte, bytes uint64, accept func(records []byte) bool) error
}

// Pages brings back the pages of a tree that is larger than its memory: from the cache that it
// shares with the block zone, else from the state zone.
//
//	reader, Apply ──stub, key range──► cache ──miss──► state zone: newest state, then older ones that are kept
//	                                     ▲                   │ records
//	                                     └── verified page ◄─┘ avlstar.VerifyPage
//
// A page is known by its hash, so what is in the cache is right for every version that has it,
// whatever was written since. The fields are set before the first read.
type Pages struct {
	Zone   PageReader
	Cache  *sgc.Cache
	Failed func(error) // told of a page that the disk does not give; nil: nobody
	Logger log.Logger  // nil: silent
}

var _ avlstar.Pages = (*Pages)(nil)

// Page implements avlstar.Pages. Errors: storage.ErrNoPage where nothing on disk is that page, and
// those of reading.
func (p *Pages) Page(s avlstar.Subtree) (*avlstar.Page, error) {
	if page, ok := p.Cache.Get(sgc.State, s.Hash[:]); ok {
		return page.(*avlstar.Page), nil
	}
	page, err := p.read(s)
	switch {
	// a version too old to be kept, or damage that no checksum shows
	case errors.Is(err, storage.ErrNoPage):
		if p.Logger != nil {
			p.Logger.Error("A part of the state cannot be read", "root", s.Hash, "err", err)
		}
		return nil, err
	case err != nil:
		if p.Failed != nil {
			p.Failed(err)
		}
		return nil, err
	}
	p.Cache.Put(sgc.State, s.Hash[:], page.Compact(), page.Size())
	return page, nil
}

// read reads and verifies the page s, whatever the cache has.
func (p *Pages) read(s avlstar.Subtree) (page *avlstar.Page, err error) {
	var refused error
	err = p.Zone.Page(s.First, s.After, s.Bytes, func(records []byte) bool {
		page, refused = avlstar.VerifyPage(s.Stub, records)
		return refused == nil
	})
	if errors.Is(err, storage.ErrNoPage) {
		err = errors.Join(err, refused)
	}
	return page, err
}

// paging is what a tree over these pages is told. It takes half of what the zone may use, its pages
// in the cache the rest.
func (p *Pages) paging() avlstar.Paging {
	return avlstar.Paging{
		Pages:   p,
		Budget:  func() int64 { return p.Cache.Target(sgc.State) / 2 },
		Evicted: func(s avlstar.Stub) { p.Cache.Evicted(sgc.State, s.Hash[:], int(s.Bytes)) },
	}
}

// account tells the cache what memory the tree of v takes outside of it.
func (p *Pages) account(v *avlstar.Version) {
	m := v.Memory()
	// At most the tree's half: its memory has gaps that fill again, and pages read need a place.
	p.Cache.SetOther(sgc.State, min(int64(m.NodeBytes+m.LeafBytes), p.Cache.Target(sgc.State)/2))
}
