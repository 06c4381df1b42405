package pages

import (
	"context"
	"errors"
	"iter"

	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/sgc"
)

// Reader reads the records of a key range, like storage.Zone.Page.
type Reader interface {
	Page(first, after []byte, bytes uint64, accept func(records []byte) bool) error
}

// Pages reads the pages of a tree that is larger than its memory, from a cache or from the state
// zone. A page is identified by its hash, so a cached page is valid for every version, of any tree,
// that contains it. The fields are set before the first read.
type Pages struct {
	Zone   Reader
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
	page, err := p.Read(s)
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

// Evicted implements avlstar.Paging.Evicted.
func (p *Pages) Evicted(s avlstar.Stub) { p.Cache.Evicted(sgc.State, s.Hash[:], int(s.Bytes)) }

// Read reads and verifies the page s without the cache. Errors are those of Page.
func (p *Pages) Read(s avlstar.Subtree) (page *avlstar.Page, err error) {
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

// Interruptible yields the leaves until ctx ends, and then the error of ctx. progress is called
// from time to time, and at the end, with the number of leaves so far.
func Interruptible(ctx context.Context, leaves iter.Seq2[record.Leaf, error], progress func(done uint64)) iter.Seq2[record.Leaf, error] {
	return func(yield func(record.Leaf, error) bool) {
		done := uint64(0)
		for leaf, err := range leaves {
			if done%(1<<12) == 0 && err == nil {
				progress(done)
				err = ctx.Err()
			}
			if !yield(leaf, err) || err != nil {
				return
			}
			done++
		}
		progress(done)
	}
}
