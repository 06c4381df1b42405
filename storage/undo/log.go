package undo

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/starling-kv/starling/storage/internal/engine"
)

// Errors of Get.
var (
	// ErrNone: there is no record of this height.
	ErrNone = errors.New("there is no undo record")
	// ErrDamaged: the bytes are not those that were written.
	ErrDamaged = errors.New("the undo record is damaged")
)

const (
	headBytes = 4 + 8 + 4 + 4
	// fileBytes is about how large a file becomes: it is removed as a whole.
	fileBytes = 4 << 20
	// defaultKeepBytes limits the files where nobody else does: each disk has an end.
	defaultKeepBytes = 1 << 30
	// maxFileBlocks limits the records of a file, for small ones.
	maxFileBlocks = 1000
	suffix        = ".undo"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Options of a Log; the zero value is usable.
type Options struct {
	FS     vfs.FS        // default: the operating system's
	Logger engine.Logger // default: silent
	// Records of the last KeepBlocks heights are kept, a file more than that at most; below 1: that
	// of the last one.
	KeepBlocks int64
	// KeepBytes limits what the files take together, but for the newest one; below 1: 1 GiB.
	KeepBytes int64
	// Slack is how far apart, at most, heights are that are put at the same time. Records of an
	// earlier start are not kept where they are of heights above that.
	Slack int64
}

// Log is a folder of undo records. All methods may be called concurrently.
type Log struct {
	o   Options
	dir string

	// mu is held during reads and writes, which are short.
	mu struct {
		sync.Mutex
		files   []*file // in order of their numbers; the last one may be open for writing
		first   uint64  // number of this start's first file
		writer  vfs.File
		index   map[int64][]place // by height, in the order in which they were written
		dirty   bool              // there is something to sync
		failure error             // nothing is written any more
	}
}

type file struct {
	number  uint64
	bytes   int64
	highest int64   // of the heights
	heights []int64 // of its records
}

// place is where a record is.
type place struct {
	file   *file
	offset int64
	length uint32
	sum    uint32
}

// Open opens the log in a folder, or makes one. Of a file, what follows damage is not read.
func Open(dir string, o Options) (*Log, error) {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Logger == nil {
		o.Logger = engine.NopLogger{}
	}
	if o.KeepBytes <= 0 {
		o.KeepBytes = defaultKeepBytes
	}
	l := &Log{o: o, dir: dir}
	l.mu.index = make(map[int64][]place)
	if err := l.load(); err != nil {
		return nil, l.err("open", err)
	}
	return l, nil
}

func (l *Log) err(doing string, err error) error {
	return fmt.Errorf("undo folder %s: %s: %w", l.dir, doing, err)
}

func (l *Log) path(number uint64) string {
	return l.o.FS.PathJoin(l.dir, fmt.Sprintf("%08d%s", number, suffix))
}

// load finds the records that there are.
func (l *Log) load() error {
	if err := l.o.FS.MkdirAll(l.dir, 0o700); err != nil {
		return err
	}
	if err := engine.SyncDir(l.o.FS, l.o.FS.PathDir(l.dir)); err != nil {
		return err
	}
	names, err := l.o.FS.List(l.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		var number uint64
		base, ok := strings.CutSuffix(name, suffix)
		if !ok {
			continue
		}
		if _, err := fmt.Sscanf(base, "%d", &number); err != nil || name != l.o.FS.PathBase(l.path(number)) {
			continue
		}
		l.mu.files = append(l.mu.files, &file{number: number})
	}
	slices.SortFunc(l.mu.files, func(a, b *file) int { return cmp.Compare(a.number, b.number) })
	l.mu.first = 1
	for _, f := range l.mu.files {
		l.mu.first = f.number + 1
		if err := l.scan(f); err != nil {
			l.o.Logger.Error("A file of undo records cannot be read, heights in it are not rebuilt", "file", l.path(f.number), "err", err)
		}
	}
	return nil
}

// scan enters the records of a file.
func (l *Log) scan(f *file) (err error) {
	in, err := l.o.FS.Open(l.path(f.number))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	f.bytes = info.Size()
	var head [headBytes]byte
	for at := int64(0); at < f.bytes; {
		if _, err := in.ReadAt(head[:], at); err != nil {
			if errors.Is(err, io.EOF) {
				return nil // a crash has cut it off
			}
			return err
		}
		height, p, ok := decodeHead(head[:])
		if !ok {
			return fmt.Errorf("at byte %d: %w", at, ErrDamaged)
		}
		p.file, p.offset = f, at+headBytes
		if at = p.offset + int64(p.length); at > f.bytes {
			return nil // a crash has cut it off
		}
		l.enter(height, p)
	}
	return nil
}

func decodeHead(b []byte) (height int64, p place, ok bool) {
	if crc32.Checksum(b[:headBytes-4], castagnoli) != binary.BigEndian.Uint32(b[headBytes-4:]) {
		return 0, p, false
	}
	p.length, p.sum = binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[12:])
	h := binary.BigEndian.Uint64(b[4:])
	return int64(h), p, h <= math.MaxInt64
}

// enter puts a record into the index. The caller holds mu, or has l for itself.
func (l *Log) enter(height int64, p place) {
	l.mu.index[height] = append(l.mu.index[height], p)
	p.file.highest = max(p.file.highest, height)
	p.file.heights = append(p.file.heights, height)
}

// Put writes the record of a block, not yet durably; it counts before an earlier one. Heights may
// come in any order. What cannot be written is logged once, and later records are not written
// either.
func (l *Log) Put(height int64, value []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.failure == nil {
		l.failed(l.put(height, value))
	}
}

// failed notes a failure. The caller holds mu.
func (l *Log) failed(err error) {
	if err != nil && l.mu.failure == nil {
		l.mu.failure = err
		l.o.Logger.Error("Undo records cannot be written: after the next start, queries reach less far back", "folder", l.dir, "err", err)
	}
}

func (l *Log) put(height int64, value []byte) error {
	if height < 1 || len(value) > math.MaxUint32 {
		return fmt.Errorf("a record of %d bytes for height %d", len(value), height)
	}
	if err := l.prepare(); err != nil {
		return err
	}
	f := l.mu.files[len(l.mu.files)-1]
	record := make([]byte, 0, headBytes+len(value))
	p := place{file: f, offset: f.bytes + headBytes, length: uint32(len(value)), sum: crc32.Checksum(value, castagnoli)}
	record = binary.BigEndian.AppendUint32(record, p.length)
	record = binary.BigEndian.AppendUint64(record, uint64(height))
	record = binary.BigEndian.AppendUint32(record, p.sum)
	record = binary.BigEndian.AppendUint32(record, crc32.Checksum(record, castagnoli))
	l.mu.dirty = true
	if _, err := l.mu.writer.Write(append(record, value...)); err != nil {
		return err
	}
	f.bytes += int64(headBytes + len(value))
	l.enter(height, p)
	return l.trim(height)
}

// prepare makes sure that the last file is open for writing and has room.
func (l *Log) prepare() error {
	next := l.mu.first
	if n := len(l.mu.files); n > 0 {
		last := l.mu.files[n-1]
		// what an earlier start has left is not continued: its end may be damaged
		if l.mu.writer != nil && last.bytes < fileBytes && len(last.heights) < maxFileBlocks {
			return nil
		}
		next = last.number + 1
	}
	if err := l.sync(); err != nil {
		return err
	}
	if err := l.closeWriter(); err != nil {
		return err
	}
	w, err := l.o.FS.Create(l.path(next), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	l.mu.writer = w
	l.mu.files = append(l.mu.files, &file{number: next})
	return nil
}

func (l *Log) closeWriter() error {
	w := l.mu.writer
	if w == nil {
		return nil
	}
	l.mu.writer = nil
	return w.Close()
}

// trim removes the files that are not kept any more, now that height was put; the newest one stays.
// No file is kept for having higher heights: the state may have gone back since they were put.
func (l *Log) trim(height int64) error {
	sum := int64(0)
	for _, f := range l.mu.files {
		sum += f.bytes
	}
	newest := l.mu.files[len(l.mu.files)-1]
	for _, f := range slices.Clone(l.mu.files) {
		if f == newest {
			return nil
		}
		if f.highest > height-max(l.o.KeepBlocks, 1) && sum <= l.o.KeepBytes {
			if !l.superseded(f, height) {
				continue
			}
			if err := l.sync(); err != nil { // what counts in its place must not be lost
				return err
			}
		}
		if err := l.remove(f); err != nil {
			return err
		}
		sum -= f.bytes
	}
	return nil
}

// superseded reports whether a file is of an earlier start, and this one has put each of its
// heights again, or will before the state is there: they are above all that it has. So it is after
// a crash, and where the state has gone back.
func (l *Log) superseded(f *file, height int64) bool {
	if f.number >= l.mu.first {
		return false
	}
	return !slices.ContainsFunc(f.heights, func(of int64) bool {
		places := l.mu.index[of]
		again := places[len(places)-1].file.number >= l.mu.first
		return !again && of-l.o.Slack <= height
	})
}

// remove removes a file with its records.
func (l *Log) remove(f *file) error {
	if err := l.o.FS.Remove(l.path(f.number)); err != nil {
		return err
	}
	for _, height := range f.heights {
		left := slices.DeleteFunc(l.mu.index[height], func(p place) bool { return p.file == f })
		if l.mu.index[height] = left; len(left) == 0 {
			delete(l.mu.index, height)
		}
	}
	l.mu.files = slices.DeleteFunc(l.mu.files, func(other *file) bool { return other == f })
	return nil
}

// Sync makes durable what was put. A failure is logged, and ends the writing.
func (l *Log) Sync() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.failure == nil {
		l.failed(l.sync())
	}
}

func (l *Log) sync() error {
	if !l.mu.dirty || l.mu.writer == nil {
		return nil
	}
	if err := errors.Join(l.mu.writer.Sync(), engine.SyncDir(l.o.FS, l.dir)); err != nil {
		return err
	}
	l.mu.dirty = false
	return nil
}

// Get returns the record of a height: the one that was put last or, if a crash has damaged that,
// one that was put before. Errors: ErrNone, ErrDamaged, and those of reading.
func (l *Log) Get(height int64) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := ErrNone
	for _, p := range slices.Backward(l.mu.index[height]) {
		var value []byte
		if value, err = l.read(p); err == nil {
			return value, nil
		}
	}
	return nil, l.err(fmt.Sprintf("height %d", height), err)
}

func (l *Log) read(p place) (value []byte, err error) {
	in, err := l.o.FS.Open(l.path(p.file.number))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	value = make([]byte, p.length) // as long as the file, at most
	// at the end of the file it may say so
	if n, err := in.ReadAt(value, p.offset); n < len(value) {
		return nil, err
	}
	if crc32.Checksum(value, castagnoli) != p.sum {
		return nil, ErrDamaged
	}
	return value, nil
}

// Bytes is what the files take together.
func (l *Log) Bytes() (sum int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.mu.files {
		sum += f.bytes
	}
	return sum
}

// Close makes durable what was put, and closes the log. No other call may follow.
func (l *Log) Close() error {
	l.Sync()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.closeWriter(); err != nil {
		return l.err("close", err)
	}
	return nil
}
