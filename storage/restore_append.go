package storage

import (
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// appendBytes is about how long a file of runs becomes: then it is synced, and the next one begun.
const appendBytes = 16 << 20

// runFile is a file that runs are appended to.
type runFile struct {
	number uint64
	file   vfs.File
	bytes  uint64 // written
}

// append writes the records of a run behind those of other runs, and returns where they lie. The
// caller holds r.journal. After an error the file is not continued: half a run may be at its end.
// It is returned as one that is full, as a file is that has become long; nil: there is none.
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
	added := run{file: f.number, at: f.bytes, bytes: uint64(len(records)), crc: crc32.Checksum(records, castagnoli)}
	if _, err := f.file.Write(unowned(records)); err != nil {
		r.journal.runs = nil
		return run{}, f, err
	}
	if f.bytes += uint64(len(records)); f.bytes >= appendBytes {
		r.journal.runs, full = nil, f
	}
	return added, full, nil
}

// complete hands a file that is not continued to the syncer. No lock but life is held: the syncer
// may have to wait for the journal.
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

// completeLast is complete for the file that is being continued.
func (r *Restore) completeLast() {
	r.journal.Lock()
	f := r.journal.runs
	r.journal.runs = nil
	r.journal.Unlock()
	r.complete(f)
}

// removeUnused removes a file that no run lies in and that is not continued.
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
	// A second attempt finds nothing, and what cannot be removed goes with the folder.
	_ = r.s.opts.FS.Remove(r.s.runsPath(number))
}

// lose removes the runs in a file that could not be made durable: what the system still shows of
// them may not be on the disk.
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
			r.s.log.Error("cannot remove a run that is lost", "folder", r.s.inZone(restoreName), "run", fmt.Sprintf("%x", string(id)), "err", err)
		}
	}
}
