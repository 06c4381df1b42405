package treestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/storage"
)

// Reads by key trust the checksums of the disk, and most of a state is seldom read at all. A
// scrubber therefore verifies every page again and again, in key order and slowly:
//
//	newest version ──stubs from the cursor on──► a few pages: read, VerifyPage ──► pause ──► …
//	                                                  │ damage
//	                                                  └──► Failed: the node stops
const (
	// scrubStep is how many bytes of leaf records are verified between two pauses. The version that
	// names them is held no longer.
	scrubStep = 64 << 10
	// scrubIdle is the pause where there is nothing to verify, or a page was not found.
	scrubIdle = time.Second
	// scrubLong ends a step, too: its version is held no longer.
	scrubLong = 20 * time.Millisecond
	// scrubRest is how many times as long as a step took the pause is at least. Where few pages are
	// on disk, most of a step is the way to them; where pages are small, it is the disk's seeks.
	scrubRest = 50
	// scrubTries is how often in a row a page of the newest version may be missing. A version that
	// is not the newest any more may lack one.
	scrubTries = 3
)

// ScrubStats count what was verified since the start.
type ScrubStats struct {
	Bytes  uint64 // of leaf records
	Passes uint64 // over all pages
}

// scrubber is the state of Store.Scrub.
type scrubber struct {
	bytes, passes atomic.Uint64
	cursor        []byte // the next page is that to which this leads; nil: the first
	missing       int    // times in a row
}

// ScrubStats returns how far Scrub is.
func (s *Store) ScrubStats() ScrubStats {
	return ScrubStats{s.scrubber.bytes.Load(), s.scrubber.passes.Load()}
}

// Scrub verifies all pages on disk, at most bytesPerSecond of leaf records, again and again until
// ctx ends. latest returns the newest version, which Scrub releases; nil: none. What is damaged is
// told to Options.Failed, and ends Scrub. It is called once, and does nothing if the store is not
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
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// scrub verifies some pages of v, and returns their length. Errors: those that are damage, and
// those of reading.
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
			return 0, Damaged(fmt.Errorf("page %s, which begins with key %x, is not what was stored: %w", page.Hash, page.First, err))
		case err != nil:
			return 0, err
		}
		c.missing, c.cursor = 0, bytes.Clone(page.After)
		verified += page.Bytes
		c.bytes.Add(page.Bytes)
	}
	if ended && (verified > 0 || c.cursor != nil) { // else there is no page
		c.cursor = nil
		c.passes.Add(1)
	}
	return verified, nil
}

// isNewest reports whether v is the newest version still. If it is, no state that it needs has been
// dropped: that is done after a newer one is published.
func isNewest(v *avlstar.Version, latest func() *avlstar.Version) bool {
	now := latest()
	if now != nil {
		now.Release()
	}
	return now == v
}
