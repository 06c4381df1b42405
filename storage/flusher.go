package storage

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// maxL0 is the maximum number of layers of new tables that wait to be compacted: beyond it, the
// next flush waits. Pebble's own limit would block the commit of a batch, where a failure cannot
// interrupt it.
const maxL0 = 20

// waiting is a block that is not durable yet.
type waiting struct {
	Block
	since time.Time

	once    sync.Once // of takeHeights
	heights []byte    // records of uvarint(len key) ‖ key ‖ height, once they were taken

	// bytes is what the block counts, see bytesOf; it grows when the heights are taken. counted is
	// the sum that it is in, nil: none. Guarded by Zone.mu.
	bytes   int64
	counted *int64
}

func (w *waiting) pins() bool { return w.PinData != nil }

// bytesOf is what a block counts toward the limits before its heights are taken, in bytes: its keys
// and values, and an overhead for each.
func bytesOf(b Block) int64 {
	n := int64(64 + 16*(len(b.Puts)+len(b.Deletes)))
	for _, l := range b.Puts {
		n += int64(len(l.Key) + len(l.Value))
	}
	for _, k := range b.Deletes {
		n += int64(len(k))
	}
	return n
}

// Write hands a block over, and returns before it is durable: see Safe and Flush. While the backlog
// is at its limit (Options.MaxLagBlocks, MaxLagBytes) it waits. Heights must rise, so only one
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

// enqueue queues the block, or returns a channel to wait on before the next attempt.
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
	s.takers.Go(func() { s.takeHeights(w) })
	s.mu.last = w.Meta.Height
	if w.pins() {
		s.mu.wanted = w.Meta.Height
	}
	s.wakeFlusher()
	return nil, nil
}

// Flush returns once all blocks written so far are durable, and their pins made. It returns the
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

func (s *Zone) wakeFlusher() {
	select {
	case s.wake <- struct{}{}:
	default: // a wake-up is pending already
	}
}

// moved wakes everything that waits for the backlog to change. The caller holds s.mu.
func (s *Zone) moved() {
	close(s.mu.moved)
	s.mu.moved = make(chan struct{})
}

// flusher makes blocks durable, many at a time, until the zone is closed or fails. A restored state
// is settled first.
func (s *Zone) flusher() {
	defer close(s.flusherDone)
	for {
		u, group, ok := s.next()
		if !ok {
			break
		}
		var err error
		if u != nil {
			if err = s.settle(u, nil); errors.Is(err, errGivenUp) {
				s.log.Info("the restored state is not settled", "folder", s.dir, "err", err)
				err = nil
			}
		} else {
			err = s.flush(group)
		}
		if err != nil {
			s.failure.fail(err)
			for _, w := range group {
				w.done()
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
		s.log.Error("the state on disk is written no more", "folder", s.dir, "height", s.Safe(), "err", err)
		s.opts.Failed(err)
	}
	s.mu.Lock()
	left := s.dropWaiting()
	if u := s.mu.unsettled; u != nil {
		s.settled(u)
	}
	s.mu.Unlock()
	for _, w := range left {
		w.done()
	}
}

// dropWaiting empties the queue and returns what was in it. The caller holds s.mu, and calls done
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

// next returns the state that is to be settled, or waits until a flush is due and takes its blocks.
// It returns false once there will be no more.
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
		if u == nil { // else Close is about to come, and drops the blocks
			due, after = s.due()
		}
		if due {
			group := s.take()
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

// due reports whether a flush is due; if not, after what time it will be (0: nothing waits). The
// caller holds s.mu.
func (s *Zone) due() (bool, time.Duration) {
	if len(s.mu.waiting) == 0 {
		return false, 0
	}
	oldest := s.mu.waiting[0]
	after := s.opts.FlushInterval - time.Since(oldest.since)
	return s.mu.closed || oldest.Meta.Height <= s.mu.wanted || len(s.mu.waiting) >= s.opts.FlushBlocks ||
		s.mu.waitingBytes >= s.opts.FlushBytes || after <= 0, max(after, 1)
}

// take takes all waiting blocks, up to and including the first one that pins. The caller holds
// s.mu.
func (s *Zone) take() []*waiting {
	n := len(s.mu.waiting)
	for i, w := range s.mu.waiting {
		if w.pins() {
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

// flush makes the blocks durable, all or none of them. Then the state after the last one is the
// state of the zone.
func (s *Zone) flush(group []*waiting) error {
	started := time.Now()
	m, last := newMerger(), group[len(group)-1]
	for _, w := range group {
		s.takeHeights(w)
		m.add(w)
	}
	if err := s.waitForCompactions(); err != nil {
		return err
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
	// Only this goroutine writes, so this is the state after the last block.
	g := newGeneration(last.Meta.Height, s.db.NewSnapshot(), s.layout)
	if last.pins() {
		s.pin(last)
	}
	s.generations.push(g, s.opts.Generations)
	if s.interrupted.Load() {
		s.forgetRestore() // blocks have replaced it
	}
	s.mu.Lock()
	s.setSafe(last.Meta)
	s.mu.flushes++ // before Done, so that whoever hears of a durable block finds the flush counted
	s.mu.flushTime += time.Since(started)
	s.mu.flushedBytes += uint64(s.mu.flushingBytes)
	s.mu.flushing, s.mu.flushingBytes = 0, 0
	s.moved()
	s.mu.Unlock()
	s.removeUnpinned()
	for _, w := range group {
		w.done()
	}
	return nil
}

// commit makes a batch durable. There is no log of writes, so that takes a flush of Pebble's.
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
	case <-s.failure.done: // Pebble keeps trying
	}
	select {
	case <-flushed: // something else has failed
		return nil
	default:
		return s.failure.err
	}
}

// waitForCompactions returns once there are few enough new tables for another flush, or the zone's
// failure.
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

// background is called by Pebble, which holds its locks, with what failed in one of its goroutines.
func (s *Zone) background(err error) {
	if !errors.Is(err, errGuard) {
		s.failure.fail(err)
	}
}
