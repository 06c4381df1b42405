package events

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/starling-kv/starling/app/event"
	"github.com/starling-kv/starling/storage/internal/engine"
)

// Records of the database:
//
//	'b' ‖ u64be height               → u64be: total bytes of events up to this block, since the log began
//	'e' ‖ u64be height ‖ u32be index → events of the block from this number on, written by event.AppendEvent
//	'v'                              → layout
//
// The first record 'b' is that of the height after which the log has all events.
const (
	tagBlock   byte = 'b'
	tagSegment byte = 'e'
)

var formatKey = []byte{'v'}

// segmentBytes is the approximate size of a segment. A larger event has a segment of its own.
const segmentBytes = 32 << 10

func blockKey(height int64) []byte {
	return binary.BigEndian.AppendUint64([]byte{tagBlock}, uint64(height))
}

func segmentKey(height int64, index uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64([]byte{tagSegment}, uint64(height)), index)
}

func endOf(tag byte) []byte { return []byte{tag + 1} }

func get(db pebble.Reader, key []byte) ([]byte, error) {
	value, closer, err := db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	value = append([]byte{}, value...)
	return value, closer.Close()
}

var errRecord = errors.New("a record has the wrong length")

// readErr wraps an error of reading records.
func (l *Log) readErr(err error) error {
	if errors.Is(err, errRecord) {
		return l.folder.Corrupt(err)
	}
	return l.folder.Err("read", err)
}

// edge returns the first or the last block of the log.
func edge(db pebble.Reader, last bool) (height int64, sum uint64, ok bool, err error) {
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: []byte{tagBlock}, UpperBound: endOf(tagBlock)})
	if err != nil {
		return 0, 0, false, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	if last {
		ok = it.Last()
	} else {
		ok = it.First()
	}
	if !ok {
		return 0, 0, false, it.Error()
	}
	height, sum, err = blockRecord(it)
	return height, sum, err == nil, err
}

func blockRecord(it *pebble.Iterator) (height int64, sum uint64, err error) {
	value, err := it.ValueAndErr()
	if err != nil {
		return 0, 0, err
	}
	key := it.Key()
	if len(key) != 9 || len(value) != 8 || key[1] >= 0x80 {
		return 0, 0, errRecord
	}
	return int64(binary.BigEndian.Uint64(key[1:])), binary.BigEndian.Uint64(value), nil
}

// sum returns the total bytes of events up to a block of the log.
func (l *Log) sum(height int64) (uint64, error) {
	value, err := get(l.db, blockKey(height))
	switch {
	case err != nil:
		return 0, l.folder.Err("read", err)
	case len(value) != 8:
		return 0, l.folder.Corrupt(fmt.Errorf("block %d: %w", height, errRecord))
	}
	return binary.BigEndian.Uint64(value), nil
}

// write writes blocks to disk until the log is closed.
func (l *Log) write() {
	for closing := false; ; {
		var err error
		select {
		case <-l.wake:
		case d := <-l.damages:
			err = l.replaceDamaged(d)
		case <-l.closing:
			closing = true
		}
		if err == nil {
			err = l.failure() // a reader could not replace the database
		}
		if err == nil {
			err = l.writeWaiting()
		}
		l.mu.Lock()
		if err != nil && l.mu.failure == nil {
			l.mu.failure = err
			l.changed()
		}
		ended := l.mu.failure != nil || closing
		if ended {
			l.mu.closed = true
			l.changed()
		}
		l.mu.Unlock()
		if err != nil {
			l.o.Failed(err)
		}
		if ended {
			return
		}
	}
}

// writeWaiting writes the backlog and trims the log.
func (l *Log) writeWaiting() error {
	for {
		number := l.number()
		l.writing.Lock()
		more, err := l.writeSome()
		l.writing.Unlock()
		if errors.Is(err, engine.ErrCorrupt) {
			more, err = true, l.replaceDamaged(damage{number, err})
		}
		if err != nil || !more {
			return err
		}
	}
}

// writeSome writes the next blocks, as many as fit into a batch. The caller holds writing.
func (l *Log) writeSome() (more bool, err error) {
	l.mu.Lock()
	if err := l.mu.failure; err != nil { // a reader could not replace the database
		l.mu.Unlock()
		return false, err
	}
	var waiting []*block
	size := int64(0)
	for _, n := range l.mu.tail {
		if n.height > l.mu.written && (size == 0 || size+n.bytes <= batchBytes) {
			waiting = append(waiting, n)
			size += n.bytes
		}
	}
	total := l.mu.total
	l.mu.Unlock()
	if len(waiting) == 0 {
		return false, nil
	}
	batch := l.db.NewBatch()
	defer batch.Close()
	written := int64(0)
	for _, n := range waiting {
		n.encode()
		if err := n.put(batch); err != nil {
			return false, l.folder.Err("write", err)
		}
		total += uint64(len(n.list))
		written += n.bytes
		if err := batch.Set(blockKey(n.height), binary.BigEndian.AppendUint64(nil, total), nil); err != nil {
			return false, l.folder.Err("write", err)
		}
	}
	if err := batch.Commit(pebble.NoSync); err != nil {
		return false, l.folder.Err("write", err)
	}
	l.mu.Lock()
	l.mu.written, l.mu.total = waiting[len(waiting)-1].height, total
	l.mu.backlog -= written
	l.mu.dropTail()
	l.changed()
	l.mu.Unlock()
	return true, l.trim()
}

// put writes the events of a block in segments.
func (n *block) put(batch *pebble.Batch) error {
	begin, first := 0, 0
	for i, end := range n.ends {
		if end-begin < segmentBytes && i+1 < len(n.ends) {
			continue
		}
		if err := batch.Set(segmentKey(n.height, uint32(first)), n.list[begin:end], nil); err != nil {
			return err
		}
		begin, first = end, i+1
	}
	return nil
}

// dropTail drops blocks from memory that are on disk and no longer among the last blocks.
func (s *state) dropTail() {
	drop := 0
	for drop < len(s.tail) && s.tail[drop].height <= s.written && s.tail[drop].height <= s.woken &&
		(len(s.tail)-drop > tailBlocks || s.tailBytes > tailBytes) {
		s.tailBytes -= s.tail[drop].bytes
		drop++
	}
	if drop > 0 {
		s.tail = append([]*block(nil), s.tail[drop:]...)
	}
}

// trim removes the oldest blocks beyond the limits, at least a hundredth of the limit at a time.
// The caller holds writing.
func (l *Log) trim() error {
	l.mu.Lock()
	s := l.mu.state
	l.mu.Unlock()
	base := s.base
	if blocks := s.written - s.base; blocks > l.o.KeepBlocks && blocks >= l.o.KeepBlocks+l.o.KeepBlocks/100 {
		base = s.written - l.o.KeepBlocks
	}
	if kept := s.total - s.trimmed; kept > uint64(l.o.KeepBytes) && kept >= uint64(l.o.KeepBytes+l.o.KeepBytes/100) {
		var err error
		if base, err = l.withinBytes(max(base, s.base), s.total); err != nil {
			return err
		}
	}
	if base == s.base {
		return nil
	}
	sum, err := l.sum(base)
	if err != nil {
		return err
	}
	// Readers look for the first record on disk, so they must stop using these blocks first.
	l.mu.Lock()
	l.mu.base, l.mu.trimmed = base, sum
	for len(l.mu.tail) > 0 && l.mu.tail[0].height <= base && l.mu.tail[0].height <= l.mu.written {
		l.mu.tailBytes -= l.mu.tail[0].bytes
		l.mu.tail = l.mu.tail[1:]
	}
	l.mu.Unlock()
	batch := l.db.NewBatch()
	defer batch.Close()
	err = errors.Join(
		batch.DeleteRange([]byte{tagSegment}, segmentKey(base+1, 0), nil),
		batch.DeleteRange([]byte{tagBlock}, blockKey(base), nil),
		batch.Commit(pebble.NoSync),
	)
	return l.folder.Err("trim", err)
}

// withinBytes returns the lowest height, at or above base, after which at most KeepBytes remain.
// The newest block is always kept.
func (l *Log) withinBytes(base int64, total uint64) (_ int64, err error) {
	it, err := l.db.NewIter(&pebble.IterOptions{LowerBound: blockKey(base), UpperBound: endOf(tagBlock)})
	if err != nil {
		return 0, l.folder.Err("read", err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		height, sum, err := blockRecord(it)
		if err != nil {
			return 0, l.folder.Corrupt(err)
		}
		if total-sum <= uint64(l.o.KeepBytes) {
			return max(min(height, l.lastBase()), base), nil
		}
	}
	return base, it.Error()
}

// lastBase returns the base that keeps only the newest block.
func (l *Log) lastBase() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.written - 1
}

// readDisk calls visit for the events from a token up to the block at height, until it returns
// false. visit must not keep an event. there is false if the log starts later.
func (l *Log) readDisk(from event.Token, height int64, visit func(*event.Event) bool) (there bool, err error) {
	l.using.RLock()
	defer l.using.RUnlock()
	if l.db == nil {
		return false, fmt.Errorf("events folder %s: %w", l.folder.Dir, ErrClosed)
	}
	snapshot := l.db.NewSnapshot()
	defer func() { err = errors.Join(err, snapshot.Close()) }()
	base, _, ok, err := edge(snapshot, false)
	switch {
	case err != nil:
		return false, l.readErr(err)
	case !ok:
		return false, l.folder.Corrupt(errors.New("it has no block"))
	case base >= from.Height:
		return false, nil
	}
	it, err := snapshot.NewIter(&pebble.IterOptions{LowerBound: segmentKey(from.Height, 0), UpperBound: segmentKey(height+1, 0)})
	if err != nil {
		return false, l.folder.Err("read", err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	// The segment that contains the event, or the first one after it.
	ok = it.SeekLT(segmentKey(from.Height, from.Index+1))
	if !ok || from.Index+1 == 0 {
		ok = it.First()
	}
	for ; ok; ok = it.Next() {
		list, err := it.ValueAndErr()
		if err != nil {
			return false, l.folder.Err("read", err)
		}
		for len(list) > 0 {
			var e event.Event
			if e, list, err = event.NextEvent(list); err != nil {
				return false, l.folder.Corrupt(err)
			}
			if (event.Token{Height: e.Height, Index: e.Index}).Before(from) {
				continue
			}
			if !visit(&e) {
				return true, nil
			}
		}
	}
	return true, l.folder.Err("read", it.Error())
}
