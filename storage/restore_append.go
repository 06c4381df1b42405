package storage

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/starling-kv/starling/internal/crc32c"
)

// appendBytes is the approximate size at which a runs file is synced and the next one begun.
const appendBytes = 16 << 20

// runFile is a file to which runs are appended.
type runFile struct {
	number uint64
	file   vfs.File
	bytes  uint64 // bytes written
}

// append appends the records of a run to the current file and returns their location. It also
// returns the file if it is full; nil: it is not. A file counts as full after an error, too,
// because it may end with an incomplete run. The caller holds r.journal.
func (r *Restore) append(records []byte) (_ run, full *runFile, err error) {
	if len(records) == 0 {
		return run{}, nil, nil
	}
	f := r.journal.runs
	if f == nil {
		f = &runFile{number: r.journal.newest + 1}
		path := r.s.runsPath(f.number)
		if f.file, err = r.s.opts.FS.Create(path, vfs.WriteCategoryUnspecified); err != nil {
			return run{}, nil, err
		}
		r.journal.runs, r.journal.newest = f, f.number
	}
	added := run{file: f.number, at: f.bytes, bytes: uint64(len(records)), crc: crc32c.Sum(records)}
	if _, err := f.file.Write(unowned(records)); err != nil {
		r.journal.runs = nil
		return run{}, f, err
	}
	if f.bytes += uint64(len(records)); f.bytes >= appendBytes {
		r.journal.runs, full = nil, f
	}
	return added, full, nil
}

// complete hands a full file to the syncer. The caller holds no lock except life, because the
// syncer may wait for the journal.
func (r *Restore) complete(f *runFile) {
	if f == nil {
		return
	}
	r.syncer.add(f.file, func(err error) {
		if err != nil {
			r.lose(f.number, err)
		}
	})
	r.removeUnused(f.number)
}

// completeLast calls complete for the current file.
func (r *Restore) completeLast() {
	r.journal.Lock()
	f := r.journal.runs
	r.journal.runs = nil
	r.journal.Unlock()
	r.complete(f)
}

// removeUnused removes a full file without runs.
func (r *Restore) removeUnused(number uint64) {
	r.journal.Lock()
	defer r.journal.Unlock()
	if f := r.journal.runs; f != nil && f.number == number {
		return
	}
	r.mu.Lock()
	used := r.mu.used[number]
	if used == 0 {
		delete(r.mu.closed, number)
		delete(r.mu.used, number)
	}
	r.mu.Unlock()
	if used > 0 || number == 0 {
		return
	}
	// If this fails, the file is removed together with the folder.
	_ = r.s.opts.FS.Remove(r.s.runsPath(number))
}

// lose removes the runs of a file that could not be synced. Reads of them may still succeed, but
// the data may not be on the disk.
func (r *Restore) lose(number uint64, err error) {
	r.mu.Lock()
	if r.mu.failure == nil {
		r.mu.failure = r.s.folder.Err("restore", err)
	}
	var lost []RunID
	for id, run := range r.mu.runs {
		if run.bytes > 0 && run.file == number {
			lost = append(lost, id)
		}
	}
	r.mu.Unlock()
	for _, id := range lost {
		if err := r.drop(id); err != nil && !errors.Is(err, ErrNoRun) {
			r.s.log.Error("cannot remove a lost run", "folder", r.s.inZone(restoreName), "run", fmt.Sprintf("%x", string(id)), "err", err)
		}
	}
}
