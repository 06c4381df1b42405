package treestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/storage"
)

// Reads by key rely on the checksums on disk, and most of a state is rarely read. Therefore a
// scrubber slowly and repeatedly verifies all pages, in key order:
//
//	newest version ──stubs from the cursor on──► a few pages: read, VerifyPage ──► pause ──► …
//	                                                  │ damage
//	                                                  └──► Failed: the node stops
const (
	// scrubStep is the number of bytes of leaf records verified between two pauses. The version is
	// released during each pause.
	scrubStep = 64 << 10
	// scrubIdle is the pause if there is nothing to verify, or a page was not found.
	scrubIdle = time.Second
	// scrubLong is the maximum duration of a step, during which the version is held.
	scrubLong = 20 * time.Millisecond
	// scrubRest times the duration of a step is the minimum pause: a step may consist of traversing
	// the tree to few pages, or of disk seeks to small ones.
	scrubRest = 50
	// scrubTries is the number of consecutive attempts after which a missing page of the newest
	// version is damage. Pages of older versions may have been dropped.
	scrubTries = 3
)

// ScrubStats counts verified data since the start.
type ScrubStats struct {
	Bytes  uint64 // bytes of leaf records
	Passes uint64 // complete passes over all pages
}

// scrubber is the state of Store.Scrub.
type scrubber struct {
	bytes, passes atomic.Uint64
	cursor        []byte // first key of the next page; nil: the first page
	missing       int    // consecutive attempts
}

// ScrubStats returns the counters of Scrub.
func (s *Store) ScrubStats() ScrubStats {
	return ScrubStats{s.scrubber.bytes.Load(), s.scrubber.passes.Load()}
}

// Scrub repeatedly verifies all pages on disk, at most bytesPerSecond of leaf records, until ctx
// ends. latest returns the newest version, which Scrub releases; nil: none. Damage is reported to
// Options.Failed and ends Scrub. It may be called once, and has no effect if the store is not
// paged.
func (s *Store) Scrub(ctx context.Context, latest func() *avlstar.Version, bytesPerSecond int64) {
	if s.pages == nil || bytesPerSecond <= 0 {
		return
	}
	for {
		pause := scrubIdle
		if v := latest(); v != nil {
			began := time.Now()
			verified, err := s.scrub(v, latest)
			v.Release()
			if err != nil {
				if ctx.Err() == nil && !errors.Is(err, storage.ErrClosed) {
					s.failed(err)
				}
				return
			}
			if verified > 0 {
				pause = time.Duration(float64(verified) / float64(bytesPerSecond) * float64(time.Second))
			}
			pause = max(pause, scrubRest*time.Since(began))
		}
		if sleep.For(ctx, pause) != nil {
			return
		}
	}
}

// scrub verifies some pages of v and returns the bytes verified. Errors: damage, and read errors.
func (s *Store) scrub(v *avlstar.Version, latest func() *avlstar.Version) (verified uint64, err error) {
	c := &s.scrubber
	began, ended := time.Now(), true
	for page := range v.Stubs(c.cursor) {
		if verified >= scrubStep || verified > 0 && time.Since(began) > scrubLong {
			ended = false
			break
		}
		_, err := s.pages.read(page)
		missing := errors.Is(err, storage.ErrNoPage)
		switch {
		case missing && !isNewest(v, latest):
			return verified, nil
		case missing && c.missing+1 < scrubTries:
			c.missing++
			return verified, nil
		case missing:
			return 0, Damaged(fmt.Errorf("page %s, which begins with key %x, differs from what was stored: %w", page.Hash, page.First, err))
		case err != nil:
			return 0, err
		}
		c.missing, c.cursor = 0, bytes.Clone(page.After)
		verified += page.Bytes
		c.bytes.Add(page.Bytes)
	}
	if ended && (verified > 0 || c.cursor != nil) { // otherwise there is no page
		c.cursor = nil
		c.passes.Add(1)
	}
	return verified, nil
}

// isNewest reports whether v is still the newest version. If it is, no state that it needs was
// dropped, because states are dropped after a newer version is published.
func isNewest(v *avlstar.Version, latest func() *avlstar.Version) bool {
	now := latest()
	if now != nil {
		now.Release()
	}
	return now == v
}
