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
	"github.com/starling-kv/starling/storage/pages"
)

// After a block, the filler reads fillBytes of leaf records for each second since the block before:
// at least once that number, and at most maxFill times. The next block takes them into the tree,
// which lengthens it by about 10 to 80 ms.
const (
	fillBytes = 8 << 20
	maxFill   = 8
)

// filler brings the pages of a state that is to be in memory back after a start from the page list.
// After each block, a goroutine reads the next pages, and the next block takes them into the tree
// (avlstar.Version.Fill). Queries and blocks that need other pages meanwhile read them, as in a
// paged store.
type filler struct {
	store   *Store
	bytes   uint64 // of the whole state
	started time.Time
	active  atomic.Bool  // pages may be away
	newest  atomic.Int64 // height of the last block
	last    time.Time    // time of the last block; only fill uses it

	// turn has an element while pages are being read. Its owner may use the fields below.
	turn   chan struct{}
	from   []byte // where the next Fill begins
	read   uint64 // bytes read so far
	missed int    // consecutive attempts at the page at from, missing from the newest version
	broken bool   // an error was reported
	logged time.Time
}

// newFiller returns the filler of a state that continues from v. away: v has stubs.
func newFiller(s *Store, v *avlstar.Version, away bool) *filler {
	now := time.Now()
	f := &filler{store: s, bytes: v.Root().Bytes, started: now, logged: now, last: now, turn: make(chan struct{}, 1)}
	f.active.Store(away)
	s.readPages(away)
	return f
}

// isActive may be called on nil, which is not active.
func (f *filler) isActive() bool { return f != nil && f.active.Load() }

// end waits for the goroutine and makes the filler inactive, because another state replaces this
// one, or the store is closed. It may be called on nil.
func (f *filler) end() {
	if f != nil {
		f.active.Store(false)
		f.turn <- struct{}{}
		<-f.turn
	}
}

// fill reads the next pages of v, the newest version, unless the last ones are still being read. It
// may be called on nil.
func (f *filler) fill(height int64, v *avlstar.Version) {
	if !f.isActive() {
		return
	}
	f.newest.Store(height)
	pause := time.Since(f.last)
	f.last = f.last.Add(pause)
	most := f.store.fillBytes * uint64(min(max(pause/time.Second, 1), maxFill))
	select {
	case f.turn <- struct{}{}:
	default:
		return
	}
	v.Retain()
	go func() {
		err := f.next(height, v, most)
		v.Release()
		<-f.turn
		if err != nil {
			f.store.failed(err)
		}
	}()
}

// next reads the next pages of v, whose height is given, until they have most bytes. It returns an
// error if the state is damaged or cannot be read. The caller has the turn.
func (f *filler) next(height int64, v *avlstar.Version, most uint64) error {
	if !f.active.Load() || f.broken {
		return nil
	}
	from := f.from
	full, err := f.readPages(v, &f.from, most)
	if !f.active.Load() {
		return nil
	}
	missing := errors.Is(err, storage.ErrNoPage)
	if !missing || !bytes.Equal(from, f.from) || f.newest.Load() != height {
		f.missed = 0
	} else {
		f.missed++
	}
	switch {
	case full:
		f.active.Store(false)
		f.store.zone.ReadUpTo(height) // only older versions have stubs
		f.store.log.Info("The whole state is in memory", "height", height, "bytes", f.read, "seconds", seconds(f.started))
		return nil
	case errors.Is(err, storage.ErrClosed):
		return nil
	case missing && f.missed < pages.ScrubTries:
		// A later block may have replaced the page while v was being read. The next attempt begins
		// with it, in the version that is then the newest.
		return nil
	case missing:
		err = Damaged(fmt.Errorf("%w: %w", ErrNotTheState, err))
	}
	if err != nil {
		f.broken = true
		return err
	}
	if time.Since(f.logged) > progressEvery {
		f.logged = time.Now()
		f.store.log.Info("Reading the state into memory", "bytes", f.read, "of", f.bytes, "seconds", seconds(f.started))
	}
	return nil
}

// readPages reads the next pages of v for the next Apply, until they have most bytes, and moves
// from, where they begin. full: v has no stubs. The caller has the turn.
func (f *filler) readPages(v *avlstar.Version, from *[]byte, most uint64) (full bool, err error) {
	*from, full, err = v.Fill(*from, most, func(p avlstar.Subtree) (*avlstar.Page, error) {
		if !f.active.Load() {
			return nil, storage.ErrClosed
		}
		page, err := f.store.pages.Read(p)
		if err == nil {
			f.read += p.Bytes
		}
		return page, err
	})
	return full, err
}

// whole reads all pages of v, and returns a version of the same state with them. It takes over the
// reference to v. The filler stays active, for the case that a block follows v.
func (f *filler) whole(ctx context.Context, v *avlstar.Version) (*avlstar.Version, error) {
	f.turn <- struct{}{}
	defer func() { <-f.turn }()
	var from []byte
	for {
		next, err := v.Apply(nil) // takes what Fill has read
		v.Release()
		if err != nil {
			return nil, err
		}
		v = next
		full, err := f.readPages(v, &from, maxFill*f.store.fillBytes)
		if err == nil {
			err = ctx.Err()
		}
		switch {
		case err != nil:
			v.Release()
			return nil, err
		case full:
			return v, nil
		}
	}
}
