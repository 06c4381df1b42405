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
	// scrubTries is how often in a row a page may be missing. A version that is not the newest any
	// more may lack one; the next version does not.
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
			verified, err := s.scrub(v)
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
func (s *Store) scrub(v *avlstar.Version) (verified uint64, err error) {
	c := &s.scrubber
	ended := true
	for page := range v.Stubs(c.cursor) {
		if verified >= scrubStep {
			ended = false
			break
		}
		_, err := s.pages.read(page)
		switch {
		case errors.Is(err, storage.ErrNoPage) && c.missing+1 < scrubTries:
			c.missing++
			return 0, nil
		case errors.Is(err, storage.ErrNoPage):
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
