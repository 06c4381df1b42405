package storage

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/starling-kv/starling/internal/wake"
)

// maxL0 is the maximum number of sublevels of L0. Above it, the next flush waits for compactions.
// Pebble's own limit would block the commit of a batch, which a failure cannot interrupt.
const maxL0 = 20

// waiting is a block that is not durable yet.
type waiting struct {
	Block
	since time.Time

	// After take: heights has records of uvarint(len key) ‖ key ‖ height, and list has records of
	// uvarint(len key) ‖ key ‖ uvarint(len record) ‖ record.
	once          sync.Once // of take
	heights, list []byte

	// bytes is the size of the block, see bytesOf; it grows by what take copies. counted is the sum
	// that includes it; nil: none. Guarded by Zone.mu.
	bytes   int64
	counted *int64
}

// bytesOf returns the size of a block as counted toward the limits, in bytes: its keys and values,
// an overhead for each, and the extra, without its heights.
func bytesOf(b Block) int64 {
	n := int64(64 + 16*(len(b.Puts)+len(b.Deletes)) + len(b.Meta.Extra))
	for _, l := range b.Puts {
		n += int64(len(l.Key) + len(l.Value))
	}
	for _, k := range b.Deletes {
		n += int64(len(k))
	}
	return n
}

// Write queues a block and returns before it is durable: see Safe and Flush. It waits while the
// backlog is at its limit (Options.MaxLagBlocks, MaxLagBytes). Heights must increase, so only one
// Write at a time makes sense. Errors: ErrClosed, ErrRestoring, the zone's failure.
func (s *Zone) Write(b Block) error {
	if s.opts.ReadOnly {
		return fmt.Errorf("state folder %s: write: open for reading only", s.dir)
	}
	if err := b.Meta.validate(); err != nil {
		return fmt.Errorf("state folder %s: write: %w", s.dir, err)
	}
	for _, l := range b.Puts {
		if len(l.Value) == 0 {
			return fmt.Errorf("state folder %s: write: key %x has an empty value", s.dir, l.Key)
		}
	}
	b.Meta.Restored = false
	w := &waiting{Block: b, bytes: bytesOf(b), since: time.Now()}
	for waited := false; ; waited = true {
		moved, err := s.enqueue(w, waited)
		if moved == nil || err != nil {
			return err
		}
		select {
		case <-moved:
		case <-s.failure.done:
		}
	}
}

// enqueue queues the block, or returns a channel to wait for before the next attempt.
func (s *Zone) enqueue(w *waiting, waited bool) (<-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch err := s.failure.get(); {
	case s.mu.closed:
		return nil, fmt.Errorf("state folder %s: write: %w", s.dir, ErrClosed)
	case err != nil:
		return nil, err
	case s.mu.restore != nil || s.mu.emptying:
		return nil, fmt.Errorf("state folder %s: write: %w", s.dir, ErrRestoring)
	case w.Meta.Height <= s.mu.last:
		return nil, fmt.Errorf("state folder %s: write of height %d over height %d", s.dir, w.Meta.Height, s.mu.last)
	}
	blocks, bytes := len(s.mu.waiting)+s.mu.flushing, s.mu.waitingBytes+s.mu.flushingBytes
	u := s.mu.unsettled
	if dropped := u != nil && u.gaveUp; !dropped && blocks > 0 && (blocks+1 > s.opts.MaxLagBlocks || bytes+w.bytes > s.opts.MaxLagBytes) {
		s.mu.pressed = u != nil
		s.wakeFlusher()
		return s.mu.moved, nil
	}
	if waited {
		s.mu.waited += time.Since(w.since)
		w.since = time.Now()
	}
	s.mu.waiting = append(s.mu.waiting, w)
	s.mu.waitingBytes += w.bytes
	w.counted = &s.mu.waitingBytes
	s.takers.Go(func() { s.take(w) })
	s.mu.last = w.Meta.Height
	if w.Pin {
		s.mu.wanted = w.Meta.Height
	}
	s.wakeFlusher()
	return nil, nil
}

// Flush waits until all blocks written so far are durable and their pins exist. It returns the
// zone's failure, if there is one, or ErrClosed if Close has dropped blocks.
func (s *Zone) Flush() error {
	s.mu.Lock()
	height := s.mu.last
	s.mu.wanted = max(s.mu.wanted, height)
	s.mu.Unlock()
	s.wakeFlusher()
	for {
		s.mu.Lock()
		durable := s.mu.safe != nil && s.mu.safe.Height >= height
		behind, moved, closed := s.behind(height), s.mu.moved, s.mu.closed
		s.mu.Unlock()
		if durable {
			return nil
		}
		if err := s.failure.get(); err != nil {
			return err // set before the waiting blocks are dropped
		}
		if !behind {
			if closed && height > 0 {
				return s.closedErr("flush")
			}
			return nil // nothing was written, or the zone was emptied
		}
		select {
		case <-moved:
		case <-s.failure.done:
		}
	}
}

// behind reports whether a block up to height is not durable yet. The caller holds s.mu.
func (s *Zone) behind(height int64) bool {
	return s.mu.flushing > 0 && s.mu.flushingFrom <= height || len(s.mu.waiting) > 0 && s.mu.waiting[0].Meta.Height <= height
}

func (s *Zone) wakeFlusher() { wake.Up(s.wake) }

// moved wakes all goroutines that wait for the backlog to change. The caller holds s.mu.
func (s *Zone) moved() {
	close(s.mu.moved)
	s.mu.moved = make(chan struct{})
}

// flusher makes blocks durable, many at a time, until the zone is closed or fails. It settles a
// restored state first.
func (s *Zone) flusher() {
	defer close(s.flusherDone)
	for {
		u, group, ok := s.next()
		if !ok {
			break
		}
		var err error
		if u != nil {
			if err = s.settle(u); errors.Is(err, errGivenUp) {
				s.log.Info("gave up settling the restored state", "folder", s.dir, "err", err)
				err = nil
			}
		} else {
			err = s.flush(group)
		}
		if err != nil {
			s.failure.fail(err)
			for _, w := range group {
				w.done(false)
			}
		}
		s.mu.Lock()
		s.mu.busy, s.mu.flushing, s.mu.flushingBytes = false, 0, 0
		s.moved()
		s.mu.Unlock()
		if err != nil {
			break
		}
	}
	if err := s.failure.get(); err != nil {
		s.log.Error("the state on disk is no longer updated", "folder", s.dir, "height", s.Safe(), "err", err)
		s.opts.Failed(err)
	}
	s.mu.Lock()
	left := s.dropWaiting()
	if u := s.mu.unsettled; u != nil {
		s.settled(u)
	}
	s.mu.Unlock()
	for _, w := range left {
		w.done(false)
	}
}

// dropWaiting empties the queue and returns its blocks. The caller holds s.mu, and must call done
// of each block after releasing it.
func (s *Zone) dropWaiting() []*waiting {
	left := s.mu.waiting
	for _, w := range left {
		w.counted = nil
	}
	s.mu.waiting, s.mu.waitingBytes = nil, 0
	s.moved()
	return left
}

// next returns a state to settle, or waits until a flush is due and takes its blocks. It returns
// false when the flusher must end.
func (s *Zone) next() (*unsettled, []*waiting, bool) {
	for {
		s.mu.Lock()
		u := s.mu.unsettled
		if s.failure.get() != nil || s.mu.closed && (len(s.mu.waiting) == 0 || u != nil) {
			s.mu.Unlock()
			return nil, nil, false
		}
		if u != nil && !u.gaveUp {
			s.mu.busy = true
			s.mu.Unlock()
			return u, nil, true
		}
		due, after := false, time.Duration(0)
		if u == nil { // otherwise Close will follow and drop the blocks
			due, after = s.due()
		}
		if due {
			group := s.takeGroup()
			s.mu.Unlock()
			return nil, group, true
		}
		s.mu.Unlock()
		var timeout <-chan time.Time
		if after > 0 {
			timeout = time.After(after)
		}
		select {
		case <-s.wake:
		case <-timeout:
		case <-s.failure.done:
		}
	}
}

// due reports whether a flush is due, and if not, after which time it will be; 0: nothing waits.
// The caller holds s.mu.
func (s *Zone) due() (bool, time.Duration) {
	if len(s.mu.waiting) == 0 {
		return false, 0
	}
	oldest := s.mu.waiting[0]
	after := s.opts.FlushInterval - time.Since(oldest.since)
	return s.mu.closed || oldest.Meta.Height <= s.mu.wanted || len(s.mu.waiting) >= s.opts.FlushBlocks ||
		s.mu.waitingBytes >= s.opts.FlushBytes || after <= 0, max(after, 1)
}

// takeGroup removes the waiting blocks from the queue, up to and including the first block with a
// pin. The caller holds s.mu.
func (s *Zone) takeGroup() []*waiting {
	n := len(s.mu.waiting)
	for i, w := range s.mu.waiting {
		if w.Pin {
			n = i + 1
			break
		}
	}
	group, rest := s.mu.waiting[:n:n], s.mu.waiting[n:]
	s.mu.waiting = append([]*waiting(nil), rest...)
	s.mu.busy, s.mu.flushing, s.mu.flushingFrom, s.mu.flushingBytes = true, n, group[0].Meta.Height, 0
	s.mu.flushingSince = group[0].since
	for _, w := range group {
		s.mu.flushingBytes += w.bytes
		w.counted = &s.mu.flushingBytes
	}
	s.mu.waitingBytes -= s.mu.flushingBytes
	return group
}

// flush makes the blocks durable atomically. Afterwards the state after the last block is the state
// of the zone.
func (s *Zone) flush(group []*waiting) error {
	started := time.Now()
	m, last := newMerger(), group[len(group)-1]
	for _, w := range group {
		s.take(w)
		m.add(w)
	}
	if err := s.waitForCompactions(); err != nil {
		return err
	}
	if m.whole != nil {
		if err := s.replacePageList(m.whole); err != nil {
			return s.folder.Err("write", err)
		}
	}
	batch, err := m.batch(s.db, last.Meta)
	if err != nil {
		return s.folder.Err("write", err)
	}
	if err := s.opts.Before(last.Meta.Height); err != nil {
		return errors.Join(err, batch.Close())
	}
	if err := s.commit(batch); err != nil {
		return err
	}
	// This goroutine is the only writer, so this is the state after the last block.
	g := newGeneration(last.Meta.Height, s.db.NewSnapshot())
	if last.Pin {
		s.pin(last)
	}
	s.generations.push(g, s.keepsGenerations())
	if s.interrupted.Load() {
		s.forgetRestore() // superseded by blocks
	}
	s.mu.Lock()
	s.setSafe(last.Meta)
	s.mu.flushes++ // before Owner.Done, so that Metrics already includes the flush
	s.mu.flushTime += time.Since(started)
	s.mu.flushedBytes += uint64(s.mu.flushingBytes)
	s.mu.flushing, s.mu.flushingBytes = 0, 0
	s.moved()
	s.mu.Unlock()
	s.removeUnpinned()
	s.measurePins()
	for _, w := range group {
		w.done(true)
	}
	return nil
}

// commit makes a batch durable by a flush, because there is no write-ahead log.
func (s *Zone) commit(batch *pebble.Batch) error {
	defer batch.Close()
	if err := batch.Commit(pebble.NoSync); err != nil {
		return s.folder.Err("write", err)
	}
	flushed, err := s.db.AsyncFlush()
	if err != nil {
		return s.folder.Err("flush", err)
	}
	select {
	case <-flushed:
		return nil
	case <-s.failure.done: // Pebble would retry forever
	}
	select {
	case <-flushed: // this flush has succeeded all the same
		return nil
	default:
		return s.failure.err
	}
}

// waitForCompactions waits until there are few enough sublevels of L0 for another flush. It returns
// the zone's failure.
func (s *Zone) waitForCompactions() error {
	for s.db.Metrics().Levels[0].Sublevels > maxL0 {
		select {
		case <-s.compacted:
		case <-s.failure.done:
		}
		if err := s.failure.get(); err != nil {
			return err
		}
	}
	return s.failure.get()
}

// background handles the error of a goroutine of Pebble. Pebble calls it with locks held.
func (s *Zone) background(err error) {
	if !errors.Is(err, errGuard) {
		s.failure.fail(err)
	}
}
