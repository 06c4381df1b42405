package storage

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/internal/crc32c"
)

// Read returns the records of a run as they were added. It fails with ErrNoRun if there is none
// with that id, and with ErrCorrupt if the file is damaged.
func (r *Restore) Read(id RunID) ([]byte, error) {
	if err := r.enter(); err != nil {
		return nil, err
	}
	defer r.leave()
	r.mu.Lock()
	found, ok := r.mu.runs[id]
	r.mu.Unlock()
	if !ok {
		return nil, r.noRunErr(id)
	}
	reader := runReader{s: r.s}
	defer reader.close()
	records, err := reader.read(found, nil)
	if errors.Is(err, errDamagedRun) {
		err = fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return records, r.s.folder.Err("restore: read a run", err)
}

// errDamagedRun: records differ from those written.
var errDamagedRun = errors.New("a run differs from what was written")

// runReader reads runs in sequence. It keeps the last file open, because neighboring chunks mostly
// arrive together and are in the same file.
type runReader struct {
	s      *Zone
	number uint64
	file   vfs.File // nil: none
	bytes  uint64   // size of the file
}

// read returns the verified records of a run, or errDamagedRun. It reuses buf if that is large
// enough.
func (r *runReader) read(run run, buf []byte) ([]byte, error) {
	if run.bytes == 0 {
		return buf[:0], nil
	}
	if r.file == nil || r.number != run.file {
		if err := r.open(run.file); err != nil {
			return nil, err
		}
	}
	path := r.s.runsPath(run.file)
	if run.at+run.bytes > r.bytes {
		return nil, fmt.Errorf("%s: %d bytes, want at least %d: %w", path, r.bytes, run.at+run.bytes, errDamagedRun)
	}
	buf = slices.Grow(buf[:0], int(run.bytes))[:run.bytes]
	if n, err := r.file.ReadAt(buf, int64(run.at)); n < len(buf) {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if crc32c.Sum(buf) != run.crc {
		return nil, fmt.Errorf("%s, offset %d: wrong checksum: %w", path, run.at, errDamagedRun)
	}
	return buf, nil
}

func (r *runReader) open(number uint64) error {
	r.close()
	file, err := r.s.opts.FS.Open(r.s.runsPath(number))
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		_ = file.Close()
		return err
	}
	r.number, r.file, r.bytes = number, file, uint64(info.Size())
	return nil
}

func (r *runReader) close() {
	if r.file != nil {
		_ = r.file.Close() // no error matters: the records were verified
		r.file = nil
	}
}

// runSet is a complete state as runs, in key order.
type runSet struct {
	s     *Zone
	runs  []run // none is empty
	bytes uint64
	// last caches the records read last, because neighboring pages are in one run.
	last atomic.Pointer[lastRead]
}

type lastRead struct {
	i       int
	records []byte
}

// newRunSet sorts runs. It fails if two begin with the same key.
func (s *Zone) newRunSet(runs map[RunID]run) (*runSet, error) {
	set := &runSet{s: s}
	for _, r := range runs {
		if r.bytes > 0 {
			set.runs = append(set.runs, r)
			set.bytes += r.bytes
		}
	}
	slices.SortFunc(set.runs, func(a, b run) int { return bytes.Compare(a.first, b.first) })
	for i := 1; i < len(set.runs); i++ {
		if bytes.Equal(set.runs[i-1].first, set.runs[i].first) {
			return nil, fmt.Errorf("two runs begin with key %x", set.runs[i].first)
		}
	}
	return set, nil
}

// each calls take for each leaf of runs [from, to), in order, until it returns false. Slices are
// valid during the call. Keys are out of order if the runs are.
func (set *runSet) each(from, to int, take func(l record.Leaf) bool) error {
	reader := runReader{s: set.s}
	defer reader.close()
	var buf []byte
	for i := from; i < to; i++ {
		records, err := reader.read(set.runs[i], buf)
		if err != nil {
			return err
		}
		buf = records
		more, err := set.leaves(i, records, take)
		if !more || err != nil {
			return err
		}
	}
	return nil
}

// leaves calls take for each leaf in the records of run i. It returns false if take did.
func (set *runSet) leaves(i int, records []byte, take func(l record.Leaf) bool) (bool, error) {
	for first := true; len(records) > 0; first = false {
		l, rest, err := record.Decode(records)
		if err != nil {
			return false, fmt.Errorf("%s: a record in the run at %d: %w: %w", set.s.runsPath(set.runs[i].file), set.runs[i].at, err, errDamagedRun)
		}
		if first {
			l.Height = set.runs[i].height
		}
		if records = rest; !take(l) {
			return false, nil
		}
	}
	return true, nil
}

// records appends the records of leaves with keys in [first, after) to buf until buf has at least
// enough bytes.
func (set *runSet) records(buf, first, after []byte, enough uint64) ([]byte, error) {
	reader := runReader{s: set.s}
	defer reader.close()
	i := max(0, sort.Search(len(set.runs), func(i int) bool { return bytes.Compare(set.runs[i].first, first) > 0 })-1)
	for more := true; more && i < len(set.runs); i++ {
		last := set.last.Load()
		if last == nil || last.i != i {
			records, err := reader.read(set.runs[i], nil)
			if err != nil {
				return buf, err
			}
			last = &lastRead{i, records}
			set.last.Store(last)
		}
		var err error
		more, err = set.leaves(i, last.records, func(l record.Leaf) bool {
			if bytes.Compare(l.Key, first) < 0 {
				return true
			}
			if uint64(len(buf)) >= enough || after != nil && bytes.Compare(l.Key, after) >= 0 {
				return false
			}
			buf = record.Append(buf, l)
			return true
		})
		if err != nil {
			return buf, err
		}
	}
	return buf, nil
}

// parts splits the set into parts of a few MiB that can be read in parallel.
func (set *runSet) parts() []section {
	var parts []section
	for from := 0; from < len(set.runs); {
		to, size := from, uint64(0)
		for ; to < len(set.runs) && size < segmentBytes; to++ {
			size += set.runs[to].bytes
		}
		parts = append(parts, set.part(from, to))
		from = to
	}
	return parts
}

func (set *runSet) part(from, to int) section {
	return func(take func(key, value []byte, height uint8) bool) error {
		return set.each(from, to, func(l record.Leaf) bool { return take(l.Key, l.Value, l.Height) })
	}
}

// keys estimates the number of leaves from the number in the first run.
func (set *runSet) keys() (uint64, error) {
	if len(set.runs) == 0 {
		return 0, nil
	}
	n := uint64(0)
	err := set.each(0, 1, func(record.Leaf) bool { n++; return true })
	return n * set.bytes / set.runs[0].bytes, err
}
