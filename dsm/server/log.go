package server

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/starling-kv/starling/internal/durable/onvfs"
	"github.com/starling-kv/starling/storage/seglog"
)

// LogFileBytes is the size at which a log file takes no further updates.
const LogFileBytes = 16 << 20

// LogOptions configure a log.
type LogOptions struct {
	FS    vfs.FS
	Dir   string // created if missing
	Label []byte // identifies chain and range; at most MaxLabelBytes
	// FileBytes is the size at which a file takes no further updates; default LogFileBytes.
	FileBytes int64
}

// Log is an append-only log (package seglog) of a range's updates since its oldest stored state,
// with consecutive heights. The key of a record is the height, u64be, its value the encoded update.
//
// An update is durable once Append has returned. Opening the log cuts off a torn or damaged update
// at its end: it was either never acknowledged or can be fetched again. Any other mismatch is
// ErrDamaged. Log must not be used concurrently.
type Log struct {
	s        *seglog.Log
	segments []logSegment // ascending, without gaps
}

// logSegment records that a segment holds the heights [first, next).
type logSegment struct {
	number      uint32
	first, next int64
}

// OpenLog opens the log in a folder. Errors: ErrDamaged; ErrGap; ErrOther; file system errors.
func OpenLog(o LogOptions) (*Log, error) {
	if o.FileBytes == 0 {
		o.FileBytes = LogFileBytes
	}
	if err := onvfs.MakeDir(o.FS, o.Dir); err != nil {
		return nil, fmt.Errorf("storagenode: log: %w", err)
	}
	l := &Log{}
	var err error
	options := seglog.Options{FS: o.FS, Dir: o.Dir, Limit: uint64(o.FileBytes)}
	l.s, err = seglog.OpenLog(seglog.LogOptions{Options: options, Label: o.Label}, l.visit)
	switch {
	case errors.Is(err, seglog.ErrLabel):
		return nil, fmt.Errorf("storagenode: log: %w: %w", ErrOther, err)
	case err != nil:
		return nil, fmt.Errorf("storagenode: log: %w", logErr(err))
	}
	return l, nil
}

// logErr adds ErrDamaged to that of package seglog.
func logErr(err error) error {
	if errors.Is(err, seglog.ErrDamaged) {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return err
}

// visit checks a record and records its height.
func (l *Log) visit(r seglog.Ref, key, _ []byte) error {
	height, err := logHeight(key)
	if err != nil {
		return err
	}
	return l.count(r.Segment, height)
}

func logHeight(key []byte) (int64, error) {
	if len(key) != 8 || binary.BigEndian.Uint64(key) >= math.MaxInt64 {
		return 0, fmt.Errorf("%w: the key %x is not a height", seglog.ErrDamaged, key)
	}
	return int64(binary.BigEndian.Uint64(key)), nil
}

// count records that the update of a height is in a segment.
func (l *Log) count(segment uint32, height int64) error {
	if next, ok := l.Next(); ok && height != next {
		return fmt.Errorf("%w: found the update of height %d, want %d", ErrGap, height, next)
	}
	if n := len(l.segments); n == 0 || l.segments[n-1].number != segment {
		l.segments = append(l.segments, logSegment{segment, height, height})
	}
	l.segments[len(l.segments)-1].next = height + 1
	return nil
}

// Torn returns what was cut off when the log was opened.
func (l *Log) Torn() seglog.Torn { return l.s.Torn() }

// Heights returns the heights of the oldest and the newest update. ok is false if the log is empty.
func (l *Log) Heights() (oldest, newest int64, ok bool) {
	next, ok := l.Next()
	if !ok {
		return 0, 0, false
	}
	return l.segments[0].first, next - 1, true
}

// Next returns the height that the next update must have. ok is false if any height is allowed.
func (l *Log) Next() (height int64, ok bool) {
	if len(l.segments) == 0 {
		return 0, false
	}
	return l.segments[len(l.segments)-1].next, true
}

// Bytes returns the total length of the log's updates.
func (l *Log) Bytes() int64 { return int64(l.s.Bytes()) }

// Append adds the update of a height, which must be 1 above the newest, and makes it durable. After
// a file system error, nothing can be appended until the log is opened again. Errors: ErrGap; file
// system errors.
func (l *Log) Append(height int64, update []byte) error {
	if next, ok := l.Next(); ok && height != next {
		return fmt.Errorf("storagenode: log: %w: got the update of height %d, want %d", ErrGap, height, next)
	}
	if len(update) > seglog.MaxValue {
		return fmt.Errorf("storagenode: log: an update of %d bytes", len(update))
	}
	r, err := l.s.Append(binary.BigEndian.AppendUint64(nil, uint64(height)), update)
	if err == nil {
		err = l.s.Sync()
	}
	if err == nil {
		err = l.count(r.Segment, height)
	}
	if err != nil {
		return fmt.Errorf("storagenode: log: %w", err)
	}
	return nil
}

// Entry is the encoded update of a height.
type Entry struct {
	Height int64
	Update []byte
}

// Since yields the updates above a height, oldest first. An error is yielded last, with a zero
// Entry.
func (l *Log) Since(height int64) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for _, segment := range l.segments {
			if segment.next-1 <= height {
				continue
			}
			if more, err := l.entries(segment, height, yield); err != nil {
				yield(Entry{}, fmt.Errorf("storagenode: log: %w", logErr(err)))
				return
			} else if !more {
				return
			}
		}
	}
}

func (l *Log) entries(segment logSegment, above int64, yield func(Entry, error) bool) (more bool, err error) {
	for offset := uint64(0); ; {
		key, r, ok, err := l.s.Store.Next(segment.number, offset)
		if err != nil || !ok {
			return true, err
		}
		height, err := logHeight(key)
		if err != nil {
			return false, err
		}
		if height > above {
			update, err := l.s.Read(key, r)
			if err != nil {
				return false, err
			}
			if !yield(Entry{height, update}, nil) {
				return false, nil
			}
		}
		offset += uint64(r.Length)
	}
}

// Truncate removes files whose updates are all at or below height. It durably removes the oldest
// file first, so a crash leaves no gap.
func (l *Log) Truncate(height int64) error {
	for len(l.segments) > 1 && l.segments[0].next-1 <= height {
		if err := l.s.DropOldest(); err != nil {
			return fmt.Errorf("storagenode: log: %w", err)
		}
		l.segments = slices.Delete(l.segments, 0, 1)
	}
	return nil
}

// Reset empties the log; the next update may have any height.
func (l *Log) Reset() error {
	l.segments = nil
	if err := l.s.Reset(); err != nil {
		return fmt.Errorf("storagenode: log: %w", err)
	}
	return nil
}

// Close closes the log. Appended updates are already durable.
func (l *Log) Close() error { return l.s.Close() }
