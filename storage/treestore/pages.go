package treestore

import (
	"errors"

	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/sgc"
)

// PageReader reads the records of a key range, like storage.Zone.Page.
type PageReader interface {
	Page(first, after []byte, bytes uint64, accept func(records []byte) bool) error
}

// Pages reads the pages of a tree that is larger than its memory: from the cache shared by the
// zones, or from the state zone.
//
//	reader, Apply ──stub, key range──► cache ──miss──► state zone: newest state, then older ones that are kept
//	                                     ▲                   │ records
//	                                     └── verified page ◄─┘ avlstar.VerifyPage
//
// A page is identified by its hash, so a cached page is valid for every version that contains it.
// The fields are set before the first read.
type Pages struct {
	Zone   PageReader
	Cache  *sgc.Cache
	Failed func(error) // called when the disk cannot be read; may be nil
	Logger log.Logger  // nil: silent
}

var _ avlstar.Pages = (*Pages)(nil)

// Page implements avlstar.Pages. Errors: storage.ErrNoPage if the disk does not have the page, and
// read errors.
func (p *Pages) Page(s avlstar.Subtree) (*avlstar.Page, error) {
	if page, ok := p.Cache.Get(sgc.State, s.Hash[:]); ok {
		return page.(*avlstar.Page), nil
	}
	page, err := p.read(s)
	switch {
	// Either the version is too old, or the page is damaged and its checksums are valid.
	case errors.Is(err, storage.ErrNoPage):
		if p.Logger != nil {
			p.Logger.Error("A page of the state cannot be read", "root", s.Hash, "err", err)
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

// read reads and verifies the page s without the cache.
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

// paging returns the paging options of a tree: the tree takes half of the zone's share of the
// cache, its pages the rest.
func (p *Pages) paging() *avlstar.Paging {
	return &avlstar.Paging{
		Pages:   p,
		Budget:  func() int64 { return p.Cache.Target(sgc.State) / 2 },
		Evicted: func(s avlstar.Stub) { p.Cache.Evicted(sgc.State, s.Hash[:], int(s.Bytes)) },
	}
}

// account reports the memory of v's tree, which is outside of the cache, to the cache.
func (p *Pages) account(v *avlstar.Version) {
	m := v.Memory()
	// At most half: the memory of the tree has gaps that fill again, and pages need space.
	p.Cache.SetOther(sgc.State, min(int64(m.NodeBytes+m.LeafBytes), p.Cache.Target(sgc.State)/2))
}
