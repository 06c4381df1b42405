package pages

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
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
//	                                                  └──► Scrub returns it
const (
	// ScrubStep is the number of bytes of leaf records verified between two pauses. The version is
	// released during each pause.
	ScrubStep = 64 << 10
	// scrubIdle is the pause if there is nothing to verify, or a page was not found.
	scrubIdle = time.Second
	// scrubLong is the maximum duration of a step, during which the version is held.
	scrubLong = 20 * time.Millisecond
	// scrubRest times the duration of a step is the minimum pause: a step may consist of traversing
	// the tree to few pages, or of disk seeks to small ones.
	scrubRest = 50
	// ScrubTries is the number of consecutive attempts after which a missing page of the newest
	// version is damage. Pages of older versions may have been dropped.
	ScrubTries = 3
)

// ErrDamaged: a page on disk differs from the one that was stored, and its checksums are valid.
var ErrDamaged = errors.New("it differs from what was stored")

// ScrubStats counts verified data since the start.
type ScrubStats struct {
	Bytes  uint64 // bytes of leaf records
	Passes uint64 // complete passes over all pages
}

// Version is a version with pages: *avlstar.Version or *avlstar.Partial.
type Version interface {
	comparable
	Release()
}

// Scrubber verifies the pages of one tree. The exported fields are set before Scrub, which must not
// be called concurrently. A further call continues with the next page.
type Scrubber[V Version] struct {
	Pages *Pages
	// Latest returns the newest version, which the scrubber releases; nil: none.
	Latest func() V
	// Of yields the pages of a version that are not in memory, in key order, from the one with key
	// from on.
	Of func(v V, from []byte) iter.Seq[avlstar.Subtree]

	bytes, passes atomic.Uint64
	cursor        []byte // first key of the next page; nil: the first page
	missing       int    // consecutive attempts
}

// Stats returns the counters.
func (s *Scrubber[V]) Stats() ScrubStats { return ScrubStats{s.bytes.Load(), s.passes.Load()} }

// Scrub repeatedly verifies all pages on disk, at most bytesPerSecond of leaf records. It returns
// nil when ctx ends, the zone is closed, or bytesPerSecond is not above 0. Errors: ErrDamaged, and
// read errors.
func (s *Scrubber[V]) Scrub(ctx context.Context, bytesPerSecond int64) error {
	if bytesPerSecond <= 0 {
		return nil
	}
	err := s.scrub(ctx, bytesPerSecond)
	if ctx.Err() != nil || errors.Is(err, storage.ErrClosed) {
		return nil //nolint:nilerr // the caller has ended it
	}
	return err
}

// scrub verifies pages until an error, or until ctx ends.
func (s *Scrubber[V]) scrub(ctx context.Context, bytesPerSecond int64) error {
	var none V
	for {
		pause := scrubIdle
		if v := s.Latest(); v != none {
			began := time.Now()
			verified, err := s.step(v)
			v.Release()
			if err != nil {
				return err
			}
			if verified > 0 {
				pause = time.Duration(float64(verified) / float64(bytesPerSecond) * float64(time.Second))
			}
			pause = max(pause, scrubRest*time.Since(began))
		}
		if err := sleep.For(ctx, pause); err != nil {
			return err
		}
	}
}

// step verifies some pages of v and returns the bytes verified.
func (s *Scrubber[V]) step(v V) (verified uint64, err error) {
	began, ended := time.Now(), true
	for page := range s.Of(v, s.cursor) {
		if verified >= ScrubStep || verified > 0 && time.Since(began) > scrubLong {
			ended = false
			break
		}
		_, err := s.Pages.Read(page)
		missing := errors.Is(err, storage.ErrNoPage)
		switch {
		case missing && !s.isNewest(v):
			return verified, nil
		case missing && s.missing+1 < ScrubTries:
			s.missing++
			return verified, nil
		case missing:
			return 0, fmt.Errorf("page %s, which begins with key %x: %w: %w", page.Hash, page.First, ErrDamaged, err)
		case err != nil:
			return 0, err
		}
		s.missing, s.cursor = 0, bytes.Clone(page.After)
		verified += page.Bytes
		s.bytes.Add(page.Bytes)
	}
	if ended && (verified > 0 || s.cursor != nil) { // otherwise there is no page
		s.cursor = nil
		s.passes.Add(1)
	}
	return verified, nil
}

// isNewest reports whether v is still the newest version. If it is, no state that it needs was
// dropped, because states are dropped after a newer version is published.
func (s *Scrubber[V]) isNewest(v V) bool {
	var none V
	now := s.Latest()
	if now != none {
		now.Release()
	}
	return now == v
}
