package events

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/starling-kv/starling/event"
)

// ErrRefill: the log begins elsewhere by now, so that what was to be added before does not lead up
// to it.
var ErrRefill = errors.New("the log of events has changed meanwhile")

// Refill adds events of blocks before the first one of a log that begins later than it would have
// to: they were lost, and are made again beside the log's work. Nothing of them is answered before
// Commit; what is left of a Refill without Commit is never seen, and removed by the next one.
//
//	      after ─── Add, ascending ──► upTo ─── blocks of the log ───►
//	the log begins here after Commit   and here before
type Refill struct {
	l           *Log
	number      int // of the database
	after, upTo int64
	sizes       []uint64 // of the events of the blocks from after+1 on
	bytes       uint64   // of all
}

// Missing returns the height after which the log begins, if it may keep blocks before that and none
// was trimmed. first is the lowest of these.
func (l *Log) Missing() (first, upTo int64, is bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &l.mu.state
	first = max(s.written-l.o.KeepBlocks+1, 1)
	return first, s.base, s.begun && s.trimmed == 0 && first <= s.base && s.total < uint64(l.o.KeepBytes)
}

// Refill begins to add the events of the blocks in (after, upTo]. The log must begin after upTo.
func (l *Log) Refill(after, upTo int64) (*Refill, error) {
	r := &Refill{l: l, number: l.number(), after: after, upTo: upTo}
	err := r.change(func(batch *pebble.Batch) error {
		// what an earlier one has left, which may have been of another program
		return batch.DeleteRange([]byte{tagSegment}, segmentKey(upTo+1, 0), nil)
	}, pebble.NoSync, nil)
	return r, err
}

// change changes the database if the log still begins after upTo, and then calls done.
func (r *Refill) change(f func(*pebble.Batch) error, how *pebble.WriteOptions, done func(*state)) error {
	l := r.l
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	changed, failure := l.mu.number != r.number || l.mu.base != r.upTo || l.mu.trimmed != 0 || l.mu.closed, l.mu.failure
	l.mu.Unlock()
	switch {
	case failure != nil:
		return failure
	case changed:
		return fmt.Errorf("events folder %s: %w", l.folder.Dir, ErrRefill)
	}
	batch := l.db.NewBatch()
	defer batch.Close()
	err := f(batch)
	if err == nil {
		err = batch.Commit(how)
	}
	if err == nil && done != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		done(&l.mu.state)
	}
	return l.folder.Err("write", err)
}

// Add adds the next block. Nobody modifies b any more.
func (r *Refill) Add(b event.Block) error {
	if want := r.after + int64(len(r.sizes)) + 1; b.Height != want || want > r.upTo {
		return fmt.Errorf("events folder %s: block %d is not the next one of (%d, %d]: %w", r.l.folder.Dir, b.Height, r.after, r.upTo, ErrRefill)
	}
	n := &block{height: b.Height, from: &b, bytes: bytesOf(&b)}
	n.encode()
	if err := r.change(n.put, pebble.NoSync, nil); err != nil {
		return err
	}
	r.sizes = append(r.sizes, uint64(len(n.list)))
	r.bytes += uint64(len(n.list))
	for r.bytes > uint64(r.l.o.KeepBytes) { // the first ones would be trimmed at once
		r.bytes -= r.sizes[0]
		r.after, r.sizes = r.after+1, r.sizes[1:]
	}
	return nil
}

// Commit makes the log begin after the lowest block that was added and that it keeps. All blocks up
// to upTo must have been added.
func (r *Refill) Commit() error {
	if r.after+int64(len(r.sizes)) != r.upTo {
		return fmt.Errorf("events folder %s: block %d is missing: %w", r.l.folder.Dir, r.after+int64(len(r.sizes))+1, ErrRefill)
	}
	// The sums of bytes up to each block continue downwards, below 0 modulo 2⁶⁴: only their
	// differences matter.
	sum := uint64(0)
	return r.change(func(batch *pebble.Batch) error {
		if err := batch.DeleteRange([]byte{tagSegment}, segmentKey(r.after+1, 0), nil); err != nil {
			return err
		}
		for i := len(r.sizes) - 1; i >= 0; i-- {
			sum -= r.sizes[i]
			if err := batch.Set(blockKey(r.after+int64(i)), binary.BigEndian.AppendUint64(nil, sum), nil); err != nil {
				return err
			}
		}
		return nil
	}, pebble.Sync, func(s *state) { s.base, s.trimmed = r.after, sum })
}
