package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/starling-kv/starling/internal/durable/onvfs"
)

// A restore is stored in a folder inside the zone's, which Pebble ignores. Like a pin, it gets its
// final name last, and loses it first:
//
//	restore-made ──rename──► restore ──rename──► restore-gone ──► removed
//	                         LABEL, JOURNAL, 000001.runs, …
//	                         COMPLETE, after Commit
//
// So a folder named restore has a label, and all its files belong to that restore.
const (
	restoreName  = "restore"
	restoreMade  = "restore-made"
	restoreGone  = "restore-gone"
	labelFile    = "LABEL"
	journalFile  = "JOURNAL"
	newSuffix    = ".new" // of a journal or COMPLETE before it gets its final name
	runsSuffix   = ".runs"
	runsNameForm = "%06d" + runsSuffix
)

func (s *Zone) inZone(name string) string { return s.opts.FS.PathJoin(s.dir, name) }

func (s *Zone) inRestore(name string) string { return s.opts.FS.PathJoin(s.dir, restoreName, name) }

func (s *Zone) runsPath(number uint64) string {
	return s.inRestore(fmt.Sprintf(runsNameForm, number))
}

// makeRestore creates the folder of a restore without runs, durably. There must be none.
func (s *Zone) makeRestore(label []byte) error {
	fs, made := s.opts.FS, s.inZone(restoreMade)
	err := errors.Join(fs.RemoveAll(made), fs.MkdirAll(made, 0o755))
	if err == nil {
		err = onvfs.Write(fs, fs.PathJoin(made, labelFile), encodeLabel(label))
	}
	if err == nil {
		err = onvfs.Rename(fs, made, s.inZone(restoreName))
	}
	return err
}

// discardRestore removes the folder of a restore, if there is one. The removal is atomic.
func (s *Zone) discardRestore() error {
	vfs, gone := s.opts.FS, s.inZone(restoreGone)
	if err := vfs.RemoveAll(gone); err != nil {
		return err
	}
	switch err := onvfs.Rename(vfs, s.inZone(restoreName), gone); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	return vfs.RemoveAll(gone)
}

// loadRestore is called by Open. It returns a restore that was committed and is not settled, keeps
// one that can be resumed, and removes all other remains.
func (s *Zone) loadRestore(hasState bool) (*unsettled, error) {
	if !s.opts.ReadOnly {
		for _, name := range []string{restoreMade, restoreGone} {
			if err := s.opts.FS.RemoveAll(s.inZone(name)); err != nil {
				return nil, err
			}
		}
	}
	if _, err := s.opts.FS.Stat(s.inZone(restoreName)); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if !hasState {
		u, err := s.loadComplete()
		if u != nil || err != nil {
			return u, err
		}
		if useful, err := s.loadInterrupted(); useful || err != nil {
			return nil, err
		}
	}
	if s.opts.ReadOnly {
		return nil, nil
	}
	return nil, s.discardRestore() // settled, or unusable
}

// loadComplete returns the state of a committed restore; nil if there is none.
func (s *Zone) loadComplete() (*unsettled, error) {
	b, err := readAll(s.opts.FS, s.inRestore(completeFile), maxCompleteBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var c complete
	if err == nil {
		c, err = decodeComplete(b)
	}
	var newer newerRestore
	var layout newerMeta
	switch {
	case errors.As(err, &newer):
		return nil, s.folder.Newer("restored state of format", uint64(newer), completeVersion)
	case errors.As(err, &layout):
		return nil, s.folder.Newer("layout", uint64(layout), FormatVersion)
	case errors.Is(err, ErrCorrupt), errors.Is(err, errMetaForm):
		return nil, s.folder.Corrupt(err)
	case err != nil:
		return nil, err
	}
	runs, err := s.readJournal()
	if err != nil {
		return nil, s.newerJournal(err)
	}
	set, err := s.newRunSet(runs)
	if err == nil && (uint64(len(set.runs)) != c.runs || set.bytes != c.bytes) {
		err = fmt.Errorf("found %d runs of %d bytes, want %d of %d bytes", len(set.runs), set.bytes, c.runs, c.bytes)
	}
	if err != nil {
		return nil, s.folder.Corrupt(err)
	}
	return newUnsettled(c.meta, set), nil
}

// loadInterrupted reports whether there is a restore that can be resumed.
func (s *Zone) loadInterrupted() (bool, error) {
	_, err := s.readLabel()
	if err == nil {
		s.interrupted.Store(true)
		if !s.opts.ReadOnly {
			_, err = s.loadRuns()
		}
		return true, s.newerJournal(err)
	}
	// A restore of a newer version is kept, because its chunks may have taken hours to fetch.
	if newer := newerRestore(0); errors.As(err, &newer) {
		return false, s.folder.Newer("interrupted join of format", uint64(newer), labelVersion)
	}
	if !errors.Is(err, ErrCorrupt) && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	s.log.Error("an interrupted restore cannot be resumed", "folder", s.inZone(restoreName), "err", err)
	return false, nil
}

// newerJournal adds a remedy to an error about a journal written by a newer program.
func (s *Zone) newerJournal(err error) error {
	if newer := newerRestore(0); errors.As(err, &newer) {
		return s.folder.Newer("journal of an interrupted join, of format", uint64(newer), journalVersion)
	}
	return err
}

func (s *Zone) readLabel() ([]byte, error) {
	b, err := readAll(s.opts.FS, s.inRestore(labelFile), 1+MaxLabel+4)
	if err != nil {
		return nil, err
	}
	return decodeLabel(b)
}

// writeLabel replaces the label durably and atomically.
func (s *Zone) writeLabel(label []byte) error {
	return onvfs.Write(s.opts.FS, s.inRestore(labelFile), encodeLabel(label))
}

// loadRuns returns the complete runs (readJournal), and removes files without any of them.
func (s *Zone) loadRuns() (map[RunID]run, error) {
	runs, err := s.readJournal()
	if err != nil {
		return nil, err
	}
	used := map[uint64]bool{}
	for _, r := range runs {
		used[r.file] = true
	}
	names, err := s.opts.FS.List(s.inZone(restoreName))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		number, ok := runsNumber(name)
		if name == labelFile || name == journalFile || ok && used[number] {
			continue
		}
		if err := s.opts.FS.RemoveAll(s.inRestore(name)); err != nil {
			return nil, err
		}
	}
	return runs, nil
}

// readJournal returns the listed runs whose files exist and are long enough.
func (s *Zone) readJournal() (map[RunID]run, error) {
	runs := map[RunID]run{}
	switch journal, err := readAll(s.opts.FS, s.inRestore(journalFile), maxJournalBytes); {
	case err == nil && len(journal) > 0 && journal[0] > journalVersion:
		return nil, newerRestore(journal[0])
	case err == nil:
		var whole int
		if runs, whole = decodeJournal(journal); whole < len(journal) {
			s.log.Info("the journal of a restore ends early", "folder", s.inZone(restoreName), "at", whole, "bytes", len(journal))
		}
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrCorrupt):
		return nil, err
	}
	lengths := map[uint64]int64{} // of files; -1: the file does not exist
	for id, r := range runs {
		if r.bytes == 0 {
			continue
		}
		length, known := lengths[r.file]
		if !known {
			length = -1
			if info, err := s.opts.FS.Stat(s.runsPath(r.file)); err == nil && !info.IsDir() {
				length = info.Size()
			}
			lengths[r.file] = length
		}
		if int64(r.at+r.bytes) > length {
			delete(runs, id)
			s.log.Info("a run of a restore is incomplete", "folder", s.inZone(restoreName), "run", fmt.Sprintf("%x", id))
		}
	}
	return runs, nil
}

func runsNumber(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, runsSuffix)
	number, err := strconv.ParseUint(digits, 10, 63)
	return number, ok && err == nil && number > 0 && fmt.Sprintf(runsNameForm, number) == name
}
