package storagenode

import (
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// LogFileBytes is the size from which on a file of a log takes no further updates.
const LogFileBytes = 16 << 20

// LogOptions are what a log is opened with.
type LogOptions struct {
	FS    vfs.FS
	Dir   string // is made if it is not there
	Label []byte // names chain and range, in at most MaxLabelBytes
	// FileBytes is the size from which on a file takes no further updates; default LogFileBytes.
	FileBytes int64
}

// Log is the updates of a range since its oldest stored state, in append-only files. A height
// follows on the one before.
//
//	00000000000000000101.log   [header ‖ update 101 ‖ … ‖ update 180]      full
//	00000000000000000181.log   [header ‖ update 181 ‖ update 182 ‖ … torn] begun
//	                                                              ▲
//	                            the next update overwrites what was not synced
//
// An update counts once Append has returned. What a crash leaves behind the last one is cut off
// when the log is opened; anything else that does not match is ErrDamaged. A last update whose
// bytes are damaged is taken for one that was not synced: it is fetched anew. The methods are to be
// called one at a time.
type Log struct {
	o      LogOptions
	files  []logFile // ascending, without gaps
	w      vfs.File  // the last of files; nil: there is none
	failed error     // of a write, after which nothing is known of the file's end
	torn   Torn
}

// Torn is what was cut off the log's end.
type Torn struct {
	File   string // empty: nothing was
	Offset int64
	Bytes  int64
}

type logFile struct {
	first, next int64 // heights: of its first update; after its last
	end         int64 // offset
	salt        []byte
}

// OpenLog opens the log in a folder. Errors: ErrDamaged; ErrGap; ErrOther; of the file system.
func OpenLog(o LogOptions) (*Log, error) {
	if o.FileBytes == 0 {
		o.FileBytes = LogFileBytes
	}
	if len(o.Label) > MaxLabelBytes {
		return nil, fmt.Errorf("storagenode: log: a label of %d bytes", len(o.Label))
	}
	l := &Log{o: o}
	if err := l.open(); err != nil {
		_ = l.closeWriter() // nothing was written
		return nil, fmt.Errorf("storagenode: log: %w", err)
	}
	return l, nil
}

func (l *Log) open() error {
	if err := makeDir(l.o.FS, l.o.Dir); err != nil {
		return err
	}
	firsts, err := l.list()
	if err != nil {
		return err
	}
	for i, first := range firsts {
		until := int64(0)
		if i+1 < len(firsts) {
			until = firsts[i+1]
		}
		f, err := l.scan(first, until)
		if errors.Is(err, errNoHeader) { // it is the last, and was being made
			if err := l.o.FS.Remove(l.path(first)); err != nil {
				return inFile(l.path(first), err)
			}
			break
		} else if err != nil {
			return err
		}
		l.files = append(l.files, f)
	}
	return l.syncLast()
}

// syncLast makes durable what is read as logged from now on: the process before may have been
// killed between writing and syncing.
func (l *Log) syncLast() error {
	if len(l.files) == 0 {
		return nil
	}
	w, err := l.writer(l.files[len(l.files)-1].first)
	if err != nil {
		return err
	}
	l.w = w
	if err := w.Sync(); err != nil {
		return inFile(l.path(l.files[len(l.files)-1].first), err)
	}
	return syncDir(l.o.FS, l.o.Dir)
}

func (l *Log) writer(first int64) (vfs.File, error) {
	w, err := l.o.FS.OpenReadWrite(l.path(first), vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, inFile(l.path(first), err)
	}
	return w, nil
}

// list returns the first heights of all files.
func (l *Log) list() ([]int64, error) {
	names, err := l.o.FS.List(l.o.Dir)
	if err != nil {
		return nil, inFile(l.o.Dir, err)
	}
	var firsts []int64
	for _, name := range names {
		if height, ok := numbered(name, logSuffix); ok {
			firsts = append(firsts, height)
		}
	}
	slices.Sort(firsts)
	return firsts, nil
}

// numbered returns the height in the name of a file.
func numbered(name, suffix string) (int64, bool) {
	digits, is := strings.CutSuffix(name, suffix)
	if !is || len(digits) != logNameDigits {
		return 0, false
	}
	height, err := strconv.ParseInt(digits, 10, 64)
	return height, err == nil && height >= 0
}

func numberedName(height int64, suffix string) string {
	return fmt.Sprintf("%0*d%s", logNameDigits, height, suffix)
}

func (l *Log) path(first int64) string {
	return l.o.FS.PathJoin(l.o.Dir, numberedName(first, logSuffix))
}

// scan reads the updates of a file up to the height at which the next file begins, 0: there is
// none, and the file's end is cut off where it was not synced. Error: errNoHeader for a file that
// was being made.
func (l *Log) scan(first, until int64) (logFile, error) {
	path := l.path(first)
	f := logFile{first: first, next: first}
	file, size, err := l.openFile(path)
	if err != nil {
		return f, err
	}
	defer file.Close()
	f.end = logHeaderBytes(l.o.Label)
	f.salt, err = readLogHeader(file, size, first, l.o.Label)
	switch {
	case errors.Is(err, errNoHeader) && (until != 0 || size > f.end):
		return f, damaged(path, 0, "%v", err)
	case errors.Is(err, errNoHeader):
		return f, err
	case err != nil:
		return f, inFile(path, err)
	}
	for until == 0 || f.next < until {
		h, update, err := readLogRecord(file, size, f.salt, f.end)
		if errors.Is(err, errNoRecord) {
			return f, l.cut(file, size, &f, until, err)
		} else if err != nil {
			return f, inFile(path, err)
		}
		if h.height != f.next {
			return f, damaged(path, f.end, "an update of height %d where %d is due", h.height, f.next)
		}
		f.next, f.end = f.next+1, f.end+logHeadBytes+int64(len(update))
	}
	return f, nil
}

// cut ends a file where no record is. Unless that is where a crash can have left it, it returns
// ErrDamaged or ErrGap.
func (l *Log) cut(file vfs.File, size int64, f *logFile, until int64, why error) error {
	path := l.path(f.first)
	later, found, err := laterRecord(file, size, f.salt, f.end)
	switch {
	case err != nil:
		return inFile(path, err)
	case found:
		return damaged(path, f.end, "%v, and another one follows at %d", why, later)
	case until != 0 && f.end < size:
		return damaged(path, f.end, "%v, and the next file begins with height %d", why, until)
	case until != 0:
		return fmt.Errorf("%w: file %s ends before height %d, and the next one begins with %d; %s", ErrGap, path, f.next, until, remedy)
	}
	if f.end < size {
		l.torn = Torn{File: path, Offset: f.end, Bytes: size - f.end}
	}
	return nil
}

func (l *Log) openFile(path string) (vfs.File, int64, error) {
	file, err := l.o.FS.Open(path)
	if err != nil {
		return nil, 0, inFile(path, err)
	}
	info, err := file.Stat()
	if err != nil {
		_ = file.Close() // nothing was written
		return nil, 0, inFile(path, err)
	}
	return file, info.Size(), nil
}

// Torn returns what was cut off when the log was opened.
func (l *Log) Torn() Torn { return l.torn }

// Heights returns the heights of the oldest and the newest update; ok is false if there is none.
func (l *Log) Heights() (oldest, newest int64, ok bool) {
	if len(l.files) == 0 {
		return 0, 0, false
	}
	oldest, newest = l.files[0].first, l.files[len(l.files)-1].next-1
	return oldest, newest, newest >= oldest
}

// Next returns the height that the next update must have; ok is false if it may be any.
func (l *Log) Next() (height int64, ok bool) {
	if len(l.files) == 0 {
		return 0, false
	}
	return l.files[len(l.files)-1].next, true
}

// Bytes returns the length of all files.
func (l *Log) Bytes() (n int64) {
	for _, f := range l.files {
		n += f.end
	}
	return n
}

// Append adds the update of a height, 1 above the newest, and makes it durable. After an error of
// the file system nothing can be appended any more: the log is to be opened anew. Errors: ErrGap;
// of the file system.
func (l *Log) Append(height int64, update []byte) error {
	if l.failed != nil {
		return fmt.Errorf("storagenode: log: %w", l.failed)
	}
	if n := len(l.files); n > 0 && height != l.files[n-1].next {
		return fmt.Errorf("storagenode: log: %w: the update of height %d where %d is due", ErrGap, height, l.files[n-1].next)
	}
	if len(update) > maxLogUpdate {
		return fmt.Errorf("storagenode: log: an update of %d bytes", len(update))
	}
	if err := l.append(height, update); err != nil {
		l.failed = err
		return fmt.Errorf("storagenode: log: %w", err)
	}
	return nil
}

func (l *Log) append(height int64, update []byte) error {
	if n := len(l.files); n == 0 || l.files[n-1].end >= l.o.FileBytes && l.files[n-1].next > l.files[n-1].first {
		if err := l.roll(height); err != nil {
			return err
		}
	}
	f := &l.files[len(l.files)-1]
	record := appendLogRecord(make([]byte, 0, logHeadBytes+len(update)), f.salt, f.end, height, update)
	if _, err := l.w.WriteAt(record, f.end); err != nil {
		return inFile(l.path(f.first), err)
	}
	if err := l.w.SyncData(); err != nil {
		return inFile(l.path(f.first), err)
	}
	f.next, f.end = f.next+1, f.end+int64(len(record))
	return nil
}

// roll begins the next file. Its header and its name are durable before anything follows.
func (l *Log) roll(height int64) error {
	if err := l.closeWriter(); err != nil {
		return err
	}
	f := logFile{first: height, next: height, end: logHeaderBytes(l.o.Label), salt: make([]byte, saltBytes)}
	_, _ = rand.Read(f.salt) // it never fails (Go 1.24)
	path := l.path(height)
	if err := l.o.FS.Remove(path); err != nil && !isNotExist(err) { // one that was being made
		return inFile(path, err)
	}
	w, err := l.writer(height)
	if err != nil {
		return err
	}
	l.w = w
	if _, err := w.WriteAt(encodeLogHeader(f.salt, height, l.o.Label), 0); err != nil {
		return inFile(path, err)
	}
	if err := w.Sync(); err != nil {
		return inFile(path, err)
	}
	if err := syncDir(l.o.FS, l.o.Dir); err != nil {
		return err
	}
	l.files = append(l.files, f)
	return nil
}

func (l *Log) closeWriter() error {
	if l.w == nil {
		return nil
	}
	w := l.w
	l.w = nil
	return w.Close()
}

// Entry is the update of a height, encoded.
type Entry struct {
	Height int64
	Update []byte
}

// Since yields the updates above a height, oldest first. An error is yielded last, with a zero
// value.
func (l *Log) Since(height int64) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for i := range l.files {
			f := &l.files[i]
			if f.next-1 <= height {
				continue
			}
			if more, err := l.entries(f, height, yield); err != nil {
				yield(Entry{}, fmt.Errorf("storagenode: log: %w", err))
				return
			} else if !more {
				return
			}
		}
	}
}

func (l *Log) entries(f *logFile, above int64, yield func(Entry, error) bool) (more bool, err error) {
	path := l.path(f.first)
	file, _, err := l.openFile(path)
	if err != nil {
		return false, err
	}
	defer file.Close()
	offset := logHeaderBytes(l.o.Label)
	for height := f.first; height < f.next; height++ {
		h, update, err := readLogRecord(file, f.end, f.salt, offset)
		if errors.Is(err, errNoRecord) || err == nil && h.height != height {
			return false, damaged(path, offset, "it was read before, and is no update of height %d any more", height)
		} else if err != nil {
			return false, inFile(path, err)
		}
		offset += logHeadBytes + int64(len(update))
		if height > above && !yield(Entry{height, update}, nil) {
			return false, nil
		}
	}
	return true, nil
}

// Truncate removes files that have only updates of heights up to this one. The oldest goes first,
// durably, so that a crash leaves no gap.
func (l *Log) Truncate(height int64) error {
	for len(l.files) > 1 && l.files[0].next-1 <= height {
		if err := l.removeOldest(); err != nil {
			return fmt.Errorf("storagenode: log: %w", err)
		}
	}
	return nil
}

// Reset removes everything: the next update can have any height.
func (l *Log) Reset() error {
	err := l.closeWriter()
	for err == nil && len(l.files) > 0 {
		err = l.removeOldest()
	}
	if err != nil {
		return fmt.Errorf("storagenode: log: %w", err)
	}
	l.failed = nil
	return nil
}

func (l *Log) removeOldest() error {
	path := l.path(l.files[0].first)
	if err := l.o.FS.Remove(path); err != nil {
		return inFile(path, err)
	}
	l.files = slices.Delete(l.files, 0, 1)
	return syncDir(l.o.FS, l.o.Dir)
}

// Close closes the log. What was appended is durable already.
func (l *Log) Close() error { return l.closeWriter() }
