package server

import (
	"errors"
	"fmt"
	"iter"
	"os"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/starling-kv/starling/internal/durable/onvfs"
	"github.com/starling-kv/starling/storage/rangestore"
	"github.com/starling-kv/starling/storage/seglog"
)

// redoFileBytes is the default size at which a file takes no further updates.
const redoFileBytes = 16 << 20

// RedoOptions configure a redo log.
type RedoOptions struct {
	FS    vfs.FS
	Dir   string // created if missing
	Label []byte // identifies the chain; at most seglog.MaxLabel bytes
	// FileBytes is the size at which a file takes no further updates; default 16 MiB.
	FileBytes int64
}

// RedoLog is an append-only log (package seglog) of the updates of all ranges of a node since their
// oldest stored states. The heights of a range are consecutive. One sync makes the updates of all
// ranges that wait durable (group commit), and one of the waiting callers does it:
//
//	Append(a, 7) ─┐             ┌─ the turn ──┐
//	Append(b, 7) ─┼─► queue ─►──┤ write, sync ├─► index ─► Append returns
//	Forget(c)    ─┘     ▲       └─────────────┘
//	                    └─ calls that arrive meanwhile are the next group
//
// A file is removed when all older ones are, and no range needs any of its updates. So a range that
// calls neither Truncate nor Forget keeps all later files of all ranges. The caller must bound
// NeededBytes of each range: by a newer stored state and Truncate, or by Forget if the range stops.
//
// Opening the log cuts off torn or damaged updates in the group that was written last: they were
// either never acknowledged or can be fetched again. Any other mismatch is ErrDamaged. After a file
// system error of a change, all further changes fail with it, and the log can still be read.
//
// All methods may be called concurrently. Only changes and the reads of Since wait for the disk.
type RedoLog struct {
	s         *seglog.Log
	fileBytes int
	turn      chan struct{} // full while a caller changes s
	mu        struct {      // not held during file I/O
		sync.Mutex
		index  redoIndex
		queue  []*redoChange
		failed error // of all further changes
	}
}

// redoChange is a queued update, or a void record if its height is redoVoid.
type redoChange struct {
	id     RangeID
	height int64
	update []byte
	done   chan struct{} // closed after err is set
	err    error
}

// OpenRedoLog opens the log in a folder, and reads it once to build its index, which takes about 16
// bytes of memory per update. Errors: ErrDamaged; rangestore.ErrOther; file system errors.
func OpenRedoLog(o RedoOptions) (*RedoLog, error) {
	if o.FileBytes == 0 {
		o.FileBytes = redoFileBytes
	}
	if err := onvfs.MakeDir(o.FS, o.Dir); err != nil {
		return nil, redoErr(err)
	}
	l := &RedoLog{fileBytes: int(o.FileBytes), turn: make(chan struct{}, 1)}
	l.mu.index = redoIndex{}
	before := func(key []byte) uint64 {
		k, _ := decodeRedoKey(key) // visit reports the error
		return k.before
	}
	options := seglog.Options{FS: o.FS, Dir: o.Dir, Limit: uint64(o.FileBytes)}
	var err error
	l.s, err = seglog.OpenLog(seglog.LogOptions{Options: options, Label: o.Label, Before: before}, l.visit)
	if errors.Is(err, seglog.ErrLabel) {
		err = fmt.Errorf("%w: %w", rangestore.ErrOther, err)
	}
	if err != nil {
		return nil, redoErr(err)
	}
	return l, nil
}

// visit adds a record to the index while the log is opened.
func (l *RedoLog) visit(ref seglog.Ref, key, _ []byte) error {
	k, err := decodeRedoKey(key)
	if err != nil {
		return err
	}
	if err := l.mu.index.add(k.id, k.height, redoPlace{ref.Segment, ref.Offset}); err != nil {
		return fmt.Errorf("%w: %w", seglog.ErrDamaged, err)
	}
	return nil
}

// redoErr adds the prefix, and ErrDamaged to that of package seglog.
func redoErr(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, seglog.ErrDamaged) {
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return fmt.Errorf("storagenode: redo log: %w", err)
}

// Torn returns what was cut off when the log was opened.
func (l *RedoLog) Torn() seglog.Torn { return l.s.Torn() }

// Append adds the update of a height of a range and makes it durable. The height must be 1 above
// the newest of the range, including those being appended; it may be any if the range has none. The
// update must not change until Append returns. Errors: ErrGap; os.ErrClosed; file system errors,
// after which the update may or may not be there when the log is opened again.
func (l *RedoLog) Append(id RangeID, height int64, update []byte) error {
	if height < 0 || height == redoVoid || len(update) > seglog.MaxValue {
		return redoErr(fmt.Errorf("an update of %d bytes for height %d", len(update), height))
	}
	return redoErr(l.change(&redoChange{id: id, height: height, update: update, done: make(chan struct{})}))
}

// Forget voids the updates of a range durably: its state was replaced, put aside or dropped. The
// next update may have any height. Forget removes files like Truncate. The errors are those of
// Append, except ErrGap.
func (l *RedoLog) Forget(id RangeID) error {
	l.mu.Lock()
	none := l.mu.failed == nil && l.mu.index[id] == nil
	l.mu.Unlock()
	if none {
		return nil
	}
	if err := l.change(&redoChange{id: id, height: redoVoid, done: make(chan struct{})}); err != nil {
		return redoErr(err)
	}
	return redoErr(l.shrink())
}

// change queues a change and waits until it is durable.
func (l *RedoLog) change(c *redoChange) error {
	if err := l.enqueue(c); err != nil {
		return err
	}
	for {
		select {
		case <-c.done:
			return c.err
		case l.turn <- struct{}{}:
		}
		select {
		case <-c.done: // no reason to wait for the sync of others
		default:
			l.commit()
		}
		<-l.turn
	}
}

func (l *RedoLog) enqueue(c *redoChange) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.failed != nil {
		return l.mu.failed
	}
	if err := l.mu.index.enqueue(c.id, c.height); err != nil {
		return err
	}
	l.mu.queue = append(l.mu.queue, c)
	return nil
}

// commit makes the next group durable and wakes its callers. The caller has the turn.
func (l *RedoLog) commit() {
	l.mu.Lock()
	group, err := l.take(), l.mu.failed
	l.mu.Unlock()
	var refs []seglog.Ref
	if err == nil {
		refs, err = l.write(group)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.failed = err
	for i, c := range group {
		if c.err = err; err == nil {
			c.err = l.mu.index.add(c.id, c.height, redoPlace{refs[i].Segment, refs[i].Offset})
		}
		l.mu.index.dequeue(c.id)
		close(c.done)
	}
}

// take removes the next group from the queue: the first changes up to the size of a file, at least
// one. The caller holds mu.
func (l *RedoLog) take() []*redoChange {
	n, size := 0, 0
	for n < len(l.mu.queue) && size < l.fileBytes {
		size += len(l.mu.queue[n].update)
		n++
	}
	group := l.mu.queue[:n:n]
	l.mu.queue = l.mu.queue[n:]
	return group
}

// write appends a group and syncs it. The caller has the turn.
func (l *RedoLog) write(group []*redoChange) ([]seglog.Ref, error) {
	var g seglog.Group
	for _, c := range group {
		g.Add(redoKey{c.id, c.height, uint64(g.Bytes())}.encode(), c.update)
	}
	refs, err := l.s.AppendGroup(&g)
	if err != nil {
		return nil, err
	}
	return refs, l.s.Sync()
}

// Heights returns the heights of the oldest and the newest update of a range. ok is false if it has
// none.
func (l *RedoLog) Heights(id RangeID) (oldest, newest int64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.mu.index[id]
	if r == nil || len(r.places) == 0 {
		return 0, 0, false
	}
	return r.first, r.end() - 1, true
}

// Ranges returns the ranges that have updates, in any order.
func (l *RedoLog) Ranges() (all []RangeID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, r := range l.mu.index {
		if len(r.places) > 0 {
			all = append(all, id)
		}
	}
	return all
}

// Entry is the encoded update of a height.
type Entry struct {
	Height int64
	Update []byte
}

// Since yields the updates of a range above a height, oldest first, that are durable when the
// iteration begins. An error is yielded last, with a zero Entry. It is seglog.ErrGone if the file
// of an update was removed meanwhile, because the range called Truncate or Forget.
func (l *RedoLog) Since(id RangeID, height int64) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		var first int64
		var places []redoPlace
		l.mu.Lock()
		if r := l.mu.index[id]; r != nil {
			first, places = r.first, r.places
		}
		l.mu.Unlock()
		for i, place := range places {
			at := first + int64(i)
			if at <= height {
				continue
			}
			update, err := l.read(id, at, place)
			if err != nil {
				yield(Entry{}, redoErr(err))
				return
			}
			if !yield(Entry{at, update}, nil) {
				return
			}
		}
	}
}

func (l *RedoLog) read(id RangeID, height int64, at redoPlace) ([]byte, error) {
	key, ref, ok, err := l.s.Next(at.segment, at.offset)
	if err != nil {
		return nil, err
	}
	if k, err := decodeRedoKey(key); !ok || err != nil || k.id != id || k.height != height {
		return nil, fmt.Errorf("%w: file %s, record at %d: not the update of height %d",
			seglog.ErrDamaged, l.s.Path(at.segment), at.offset, height)
	}
	return l.s.Read(key, ref)
}

// Truncate declares that a range needs no updates up to a height. It removes the oldest files that
// no range needs, durably and in order, so a crash leaves no gap. Updates in the remaining files
// can still be read. The heights are only in memory: after the log is opened, each range must call
// Truncate again. Errors: os.ErrClosed; file system errors.
func (l *RedoLog) Truncate(id RangeID, height int64) error {
	l.mu.Lock()
	if r := l.mu.index[id]; r != nil {
		r.needed = max(r.needed, min(height+1, r.end()))
	}
	l.mu.Unlock()
	return redoErr(l.shrink())
}

// shrink removes the oldest files that no range needs.
func (l *RedoLog) shrink() error {
	if _, ok, _ := l.removable(); !ok { // usual, and needs no turn
		return nil
	}
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	for {
		oldest, ok, err := l.removable()
		if !ok || err != nil {
			return err
		}
		err = l.s.DropOldest()
		l.mu.Lock()
		if err == nil {
			l.mu.index.drop(oldest)
		} else {
			l.mu.failed = err // without it, the next removal could leave a gap of files
		}
		l.mu.Unlock()
	}
}

// removable returns the oldest segment if no range needs it and it is not the last one, and the
// error of an earlier change.
func (l *RedoLog) removable() (oldest uint32, ok bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.s.All()
	if len(all) < 2 || l.mu.index.needs(all[0]) {
		return 0, false, nil
	}
	return all[0], true, l.mu.failed
}

// Bytes returns the total length of the log's records.
func (l *RedoLog) Bytes() int64 { return int64(l.s.Bytes()) }

// NeededBytes returns the total length of the files from that of the oldest update on that a range
// needs. They stay until it calls Truncate or Forget.
func (l *RedoLog) NeededBytes(id RangeID) (bytes int64) {
	l.mu.Lock()
	oldest, ok := l.mu.index[id].oldestNeeded()
	l.mu.Unlock()
	for _, segment := range l.s.All() {
		if ok && segment >= oldest {
			bytes += int64(l.s.End(segment))
		}
	}
	return bytes
}

// Close waits for the running change and closes the log. Changes that wait fail with os.ErrClosed.
// Durable updates stay. No iteration of Since may be running.
func (l *RedoLog) Close() error {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	l.mu.Lock()
	if l.mu.failed == nil {
		l.mu.failed = os.ErrClosed
	}
	l.mu.Unlock()
	return redoErr(l.s.Close())
}
