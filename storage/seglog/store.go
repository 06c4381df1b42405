package seglog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/starling-kv/starling/internal/durable/onvfs"
	"github.com/starling-kv/starling/storage/internal/engine"
)

// Limit is the size above which a segment takes no further records.
const Limit = 64 << 20

// maxHandles is the maximum number of files that stay open for reading.
const maxHandles = 128

// ErrGone: the segment was removed, so the index no longer has a Ref to it.
var ErrGone = errors.New("segment was removed")

// Options configure a Store.
type Options struct {
	FS       vfs.FS
	Dir      string
	Ends     map[uint32]uint64 // of all segments in the index; each has records
	Limit    uint64            // default Limit
	ReadOnly bool              // nothing on disk changes

	salt []byte // of a Log
}

// Store contains the segments of a folder.
type Store struct {
	o Options

	// Used by one appending call at a time.
	w struct {
		file   vfs.File // nil: not open
		number uint32   // of the segment that is appended to; 0: none
		dirty  bool     // there are bytes to sync
		failed error    // error of a write or sync: the end of the file is unknown
	}

	mu struct {
		sync.Mutex
		files     map[uint32]*segment // including those that wait to be removed
		handles   int                 // number of files open for reading
		clock     uint64              // counts uses, removals and holds
		holds     map[uint64]struct{} // by the clock at their beginning
		condemned []*segment
		closed    bool
	}
}

// segment is one file. Its fields are guarded by Store.mu.
type segment struct {
	number  uint32
	end     uint64   // end of the records
	handle  vfs.File // nil: not open
	opening chan struct{}
	readers int
	used    uint64 // clock of the last read
	removed uint64 // clock of the removal; 0: not removed
	gone    bool   // the file is unlinked; the last reader closes handle
}

// Open opens the segments in the folder. Unless it is read-only, it removes segments that are not
// in the index. Errors: ErrDamaged for a segment that is missing or shorter than in the index, and
// file system errors.
func Open(o Options) (*Store, error) {
	if o.Limit == 0 {
		o.Limit = Limit
	}
	s := &Store{o: o}
	s.mu.files, s.mu.holds = map[uint32]*segment{}, map[uint64]struct{}{}
	there, err := Numbers(o.FS, o.Dir)
	if err != nil {
		return nil, err
	}
	for _, number := range there {
		if _, known := o.Ends[number]; known || o.ReadOnly {
			continue
		}
		if err := o.FS.Remove(s.path(number)); err != nil {
			return nil, err
		}
	}
	for _, number := range slices.Sorted(maps.Keys(o.Ends)) {
		end := o.Ends[number]
		info, err := o.FS.Stat(s.path(number))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("%w: file %s is missing", ErrDamaged, s.path(number))
		case err != nil:
			return nil, err
		case uint64(info.Size()) < end:
			return nil, fmt.Errorf("%w: file %s has %d bytes, but records up to %d", ErrDamaged, s.path(number), info.Size(), end)
		}
		s.mu.files[number] = &segment{number: number, end: end}
		s.w.number = number
	}
	return s, nil
}

// Numbers returns the numbers of the segments in a folder, in ascending order.
func Numbers(fsys vfs.FS, dir string) ([]uint32, error) {
	names, err := fsys.List(dir)
	if err != nil {
		return nil, err
	}
	var numbers []uint32
	for _, name := range names {
		digits, is := strings.CutSuffix(name, suffix)
		n, err := strconv.ParseUint(digits, 10, 32)
		if is && err == nil && n > 0 && name == fileName(uint32(n)) {
			numbers = append(numbers, uint32(n))
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

const suffix = engine.SegmentSuffix

func fileName(number uint32) string { return fmt.Sprintf("%06d"+suffix, number) }

func (s *Store) path(number uint32) string { return s.o.FS.PathJoin(s.o.Dir, fileName(number)) }

// Append appends the records of the groups to one segment. It returns their locations, in order,
// and the new end of the segment. They are durable after Sync. After an error, nothing can be
// appended any more.
func (s *Store) Append(groups ...*Group) (refs []Ref, end uint64, err error) {
	defer func() {
		if err != nil {
			s.w.failed = err
		}
	}()
	if s.w.failed != nil {
		return nil, 0, s.w.failed
	}
	end, err = s.begin()
	if err != nil {
		return nil, 0, err
	}
	number := s.w.number
	s.w.dirty = true
	for _, g := range groups {
		for i, record := range g.records {
			refs = append(refs, g.place(i, s.place(number, end)))
			if _, err := s.w.file.WriteAt(record, int64(end)); err != nil {
				return nil, 0, inFile(s.path(number), err)
			}
			end += uint64(len(record))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.files[number].end = end
	return refs, end, nil
}

// begin ensures that a segment with room is open, and returns its end.
func (s *Store) begin() (end uint64, err error) {
	s.mu.Lock()
	now := s.mu.files[s.w.number]
	if now != nil {
		end = now.end
	}
	s.mu.Unlock()
	if now == nil || end >= s.o.Limit {
		if err := s.roll(); err != nil {
			return 0, err
		}
		end = 0
	}
	if s.w.file == nil { // from a previous process
		if s.w.file, err = s.openWriter(); err != nil {
			return 0, err
		}
	}
	return end, nil
}

func (s *Store) openWriter() (vfs.File, error) {
	file, err := s.o.FS.OpenReadWrite(s.path(s.w.number), vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, inFile(s.path(s.w.number), err)
	}
	return file, nil
}

// roll begins the next segment, and makes its name durable.
func (s *Store) roll() error {
	if s.w.number == math.MaxUint32 {
		return errors.New("the numbers of segments are used up")
	}
	err := s.Sync()
	if s.w.file != nil {
		err = errors.Join(err, s.w.file.Close())
		s.w.file = nil
	}
	if err != nil {
		return err
	}
	s.w.number++
	if s.w.file, err = s.openWriter(); err != nil {
		return err
	}
	if err := onvfs.SyncDir(s.o.FS, s.o.Dir); err != nil {
		return inFile(s.o.Dir, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.files[s.w.number] = &segment{number: s.w.number}
	return nil
}

// Sync makes all appended records durable. After an error, nothing can be appended any more.
func (s *Store) Sync() error {
	if s.w.failed != nil || !s.w.dirty {
		return s.w.failed
	}
	if err := s.w.file.SyncData(); err != nil {
		s.w.failed = inFile(s.path(s.w.number), err)
		return s.w.failed
	}
	s.w.dirty = false
	return nil
}

// Active returns the number of the segment that is appended to; 0: none.
func (s *Store) Active() uint32 { return s.w.number }

// inFile adds the path to an error, which read and write errors of some file systems do not
// include.
func inFile(path string, err error) error { return fmt.Errorf("file %s: %w", path, err) }

// Read returns the value of a record, which must have that key. Errors: ErrGone, ErrDamaged with
// the file, and file system errors.
func (s *Store) Read(key []byte, r Ref) ([]byte, error) {
	file, err := s.acquire(r.Segment)
	if err != nil {
		return nil, err
	}
	defer s.release(file)
	b, err := s.bytes(file, r.Offset, uint64(r.Length))
	if err != nil {
		return nil, err
	}
	h, got, value, err := decode(b, s.place(r.Segment, r.Offset))
	if err != nil {
		return nil, s.at(r, err)
	}
	if h.length() != r.Length || h.sum != r.Sum || !bytes.Equal(got, key) {
		return nil, s.at(r, fmt.Errorf("%w: the record differs from the one in the index", ErrDamaged))
	}
	return value, nil
}

func (s *Store) place(number uint32, offset uint64) place { return place{s.o.salt, number, offset} }

// at adds the location to an error.
func (s *Store) at(r Ref, err error) error {
	return fmt.Errorf("file %s, record at %d: %w", s.path(r.Segment), r.Offset, err)
}

// bytes reads n bytes of the records.
func (s *Store) bytes(file *segment, offset, n uint64) ([]byte, error) {
	r := Ref{Segment: file.number, Offset: offset}
	if end := s.endOf(file); offset > end || n > end-offset {
		return nil, s.at(r, fmt.Errorf("%w: %d bytes from there on exceed the end at %d", ErrDamaged, n, end))
	}
	b := make([]byte, n)
	switch got, err := file.handle.ReadAt(b, int64(offset)); {
	case uint64(got) == n:
		return b, nil
	case err == nil || errors.Is(err, io.EOF):
		return nil, s.at(r, fmt.Errorf("%w: the file ends at %d", ErrDamaged, offset+uint64(got)))
	default:
		return nil, s.at(r, err)
	}
}

// Next returns the key of the record at an offset, and its Ref, without reading its value. ok is
// false at the end of the segment. The errors are those of Read.
func (s *Store) Next(number uint32, offset uint64) (key []byte, r Ref, ok bool, err error) {
	file, err := s.acquire(number)
	if err != nil {
		return nil, Ref{}, false, err
	}
	defer s.release(file)
	end := s.endOf(file)
	if offset >= end {
		return nil, Ref{}, false, nil
	}
	r = Ref{Segment: number, Offset: offset}
	b, err := s.bytes(file, offset, min(headBytes+64, end-offset)) // most keys fit
	if err != nil {
		return nil, r, false, err
	}
	h, err := decodeHead(b)
	if err == nil && len(b) < headBytes+h.key {
		if b, err = s.bytes(file, offset, uint64(headBytes+h.key)); err != nil {
			return nil, r, false, err
		}
	}
	if err == nil {
		h, key, err = decodeKey(b, s.place(number, offset))
	}
	if err != nil {
		return nil, r, false, s.at(r, err)
	}
	r.Length, r.Sum = h.length(), h.sum
	if uint64(r.Length) > end-offset {
		return nil, r, false, s.at(r, fmt.Errorf("%w: the record ends at %d, after the end of the segment", ErrDamaged, offset+uint64(r.Length)))
	}
	return key, r, true, nil
}

// All returns the numbers of the segments that were not removed, in ascending order.
func (s *Store) All() []uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []uint32
	for number, file := range s.mu.files {
		if file.removed == 0 {
			all = append(all, number)
		}
	}
	slices.Sort(all)
	return all
}

// End returns the end of the records of a segment; 0: it was removed.
func (s *Store) End(number uint32) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if file := s.mu.files[number]; file != nil {
		return file.end
	}
	return 0
}

func (s *Store) endOf(file *segment) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return file.end
}

// Bytes returns the total length of the records in segments that were not removed.
func (s *Store) Bytes() (bytes uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, file := range s.mu.files {
		if file.removed == 0 {
			bytes += file.end
		}
	}
	return bytes
}

// Path returns the path of a segment.
func (s *Store) Path(number uint32) string { return s.path(number) }

// Hold keeps the current records readable, even after Remove, until release is called. release must
// be called only once.
func (s *Store) Hold() (release func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.clock++
	began := s.mu.clock
	s.mu.holds[began] = struct{}{}
	return func() error {
		s.mu.Lock()
		delete(s.mu.holds, began)
		s.mu.Unlock()
		return s.unlink()
	}
}

// Remove removes a full segment. The durable index must have no Ref to it. Its file is unlinked
// once there is no older Hold. A concurrent Read returns ErrGone or the value.
func (s *Store) Remove(number uint32) error {
	s.mu.Lock()
	file := s.mu.files[number]
	if file == nil || file.removed != 0 || number == s.w.number {
		s.mu.Unlock()
		return fmt.Errorf("segment %d does not exist, or is not full", number)
	}
	s.mu.clock++
	file.removed = s.mu.clock
	s.mu.condemned = append(s.mu.condemned, file)
	s.mu.Unlock()
	return s.unlink()
}

// unlink removes the files of removed segments that are not held.
func (s *Store) unlink() error {
	s.mu.Lock()
	var now, later []*segment
	for _, file := range s.mu.condemned {
		held := false
		for began := range s.mu.holds {
			held = held || began < file.removed
		}
		if held {
			later = append(later, file)
			continue
		}
		now = append(now, file)
		file.gone = true
		delete(s.mu.files, file.number)
	}
	s.mu.condemned = later
	s.mu.Unlock()
	var errs []error
	for _, file := range now {
		errs = append(errs, s.shut(file), s.o.FS.Remove(s.path(file.number)))
	}
	return errors.Join(errs...)
}

// acquire returns a segment whose handle stays open until release.
func (s *Store) acquire(number uint32) (*segment, error) {
	s.mu.Lock()
	for {
		file := s.mu.files[number]
		if file == nil || s.mu.closed {
			s.mu.Unlock()
			return nil, fmt.Errorf("segment %d: %w", number, ErrGone)
		}
		if file.handle != nil {
			s.use(file)
			s.mu.Unlock()
			return file, nil
		}
		if wait := file.opening; wait != nil { // another reader is opening it
			s.mu.Unlock()
			<-wait
			s.mu.Lock()
			continue
		}
		done := make(chan struct{})
		file.opening = done
		file.readers++ // so that it is not closed meanwhile
		s.mu.Unlock()
		handle, err := s.o.FS.Open(s.path(number), vfs.RandomReadsOption)
		s.mu.Lock()
		file.readers--
		file.opening = nil
		close(done)
		if err != nil {
			gone := file.gone
			s.mu.Unlock()
			if gone {
				return nil, fmt.Errorf("segment %d: %w", number, ErrGone)
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("%w: file %s is missing", ErrDamaged, s.path(number))
			}
			return nil, inFile(s.path(number), err)
		}
		file.handle = handle
		s.mu.handles++
		s.use(file)
		over := s.leastUsed()
		s.mu.Unlock()
		if over != nil {
			_ = over.Close() // it was only read
		}
		return file, nil
	}
}

// use counts a reader. The caller holds mu.
func (s *Store) use(file *segment) {
	s.mu.clock++
	file.readers, file.used = file.readers+1, s.mu.clock
}

// leastUsed returns the handle of the least recently read file, and removes it from the file, if
// too many are open. The caller holds mu, and must close the handle.
func (s *Store) leastUsed() vfs.File {
	if s.mu.handles <= maxHandles {
		return nil
	}
	var least *segment
	for _, file := range s.mu.files {
		if file.handle != nil && file.readers == 0 && (least == nil || file.used < least.used) {
			least = file
		}
	}
	if least == nil {
		return nil
	}
	handle := least.handle
	least.handle = nil
	s.mu.handles--
	return handle
}

func (s *Store) release(file *segment) {
	s.mu.Lock()
	file.readers--
	last := file.gone && file.readers == 0
	s.mu.Unlock()
	if last {
		_ = s.shut(file) // no error matters: the reads were verified
	}
}

// shut closes the handle of a file, unless it is being read.
func (s *Store) shut(file *segment) error {
	s.mu.Lock()
	handle := file.handle
	if handle == nil || file.readers > 0 {
		s.mu.Unlock()
		return nil
	}
	file.handle = nil
	s.mu.handles--
	s.mu.Unlock()
	return handle.Close()
}

// Close waits for the last reader and hold, and closes the files. Appended records are durable only
// after Sync. Files of removed segments that were held are unlinked.
func (s *Store) Close() error {
	s.mu.Lock()
	s.mu.closed = true
	clear(s.mu.holds)
	all := slices.Collect(maps.Values(s.mu.files))
	s.mu.Unlock()
	errs := []error{s.unlink()}
	for _, file := range all {
		errs = append(errs, s.shut(file))
	}
	if s.w.file != nil {
		errs = append(errs, s.w.file.Close())
		s.w.file = nil
	}
	return errors.Join(errs...)
}
