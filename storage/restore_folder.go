package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/starling-kv/starling/storage/internal/engine"
)

// A restore lies in a folder within the zone's, which Pebble ignores. Like a pin, it gets its name
// last, and loses it first:
//
//	restore-made ──rename──► restore ──rename──► restore-gone ──► removed
//	                         LABEL, JOURNAL, 000001.sst, …
//
// So a folder named restore has a label, and what lies in it was added to that restore.
const (
	restoreName   = "restore"
	restoreMade   = "restore-made"
	restoreGone   = "restore-gone"
	labelFile     = "LABEL"
	journalFile   = "JOURNAL"
	newSuffix     = ".new" // of a label or journal that is about to replace the old one
	tableSuffix   = ".sst"
	tableNameForm = "%06d" + tableSuffix
)

func (s *Zone) inZone(name string) string { return s.opts.FS.PathJoin(s.dir, name) }

func (s *Zone) inRestore(name string) string { return s.opts.FS.PathJoin(s.dir, restoreName, name) }

func (s *Zone) tablePath(number uint64) string {
	return s.inRestore(fmt.Sprintf(tableNameForm, number))
}

// makeRestore makes the folder of a restore without runs, durably. There must be none.
func (s *Zone) makeRestore(label []byte) error {
	fs, made := s.opts.FS, s.inZone(restoreMade)
	err := errors.Join(fs.RemoveAll(made), fs.MkdirAll(made, 0o755))
	if err == nil {
		err = writeSynced(fs, fs.PathJoin(made, labelFile), encodeLabel(label))
	}
	if err == nil {
		err = engine.SyncDir(fs, made)
	}
	if err == nil {
		err = fs.Rename(made, s.inZone(restoreName))
	}
	if err == nil {
		err = engine.SyncDir(fs, s.dir)
	}
	return err
}

// discardRestore removes the folder of a restore, if there is one. After a crash it is there whole,
// or not at all.
func (s *Zone) discardRestore() error {
	vfs, gone := s.opts.FS, s.inZone(restoreGone)
	if err := vfs.RemoveAll(gone); err != nil {
		return err
	}
	switch err := vfs.Rename(s.inZone(restoreName), gone); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	if err := engine.SyncDir(vfs, s.dir); err != nil {
		return err
	}
	return vfs.RemoveAll(gone)
}

// loadRestore, when the zone is opened, looks for a restore that can be resumed, and removes any
// other remains.
func (s *Zone) loadRestore(hasState bool) error {
	if !s.opts.ReadOnly {
		for _, name := range []string{restoreMade, restoreGone} {
			if err := s.opts.FS.RemoveAll(s.inZone(name)); err != nil {
				return err
			}
		}
	}
	if _, err := s.opts.FS.Stat(s.inZone(restoreName)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if !hasState {
		_, err := s.readLabel()
		if err == nil {
			s.interrupted.Store(true)
			if s.opts.ReadOnly {
				return nil
			}
			_, err := s.loadRuns()
			if newer := newerRestore(0); errors.As(err, &newer) {
				return s.folder.Newer("journal of an interrupted join, of format", uint64(newer), journalVersion)
			}
			return err
		}
		// what it has fetched may have taken hours
		if newer := newerRestore(0); errors.As(err, &newer) {
			return s.folder.Newer("interrupted join of format", uint64(newer), labelVersion)
		}
		if !errors.Is(err, ErrCorrupt) && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		s.log.Error("an interrupted restore cannot be resumed", "folder", s.inZone(restoreName), "err", err)
	}
	if s.opts.ReadOnly {
		return nil
	}
	return s.discardRestore() // it was committed, or is useless
}

func (s *Zone) readLabel() ([]byte, error) {
	b, err := readAll(s.opts.FS, s.inRestore(labelFile), 1+MaxLabel+4)
	if err != nil {
		return nil, err
	}
	return decodeLabel(b)
}

// writeLabel replaces the label, durably: after a crash there is the old one or the new one.
func (s *Zone) writeLabel(label []byte) error {
	return s.replaceInRestore(labelFile, encodeLabel(label))
}

func (s *Zone) replaceInRestore(name string, b []byte) error {
	fs, path := s.opts.FS, s.inRestore(name)
	if err := writeSynced(fs, path+newSuffix, b); err != nil {
		return errors.Join(err, fs.Remove(path+newSuffix))
	}
	if err := fs.Rename(path+newSuffix, path); err != nil {
		return err
	}
	return engine.SyncDir(fs, s.inZone(restoreName))
}

// loadRuns returns the runs whose tables are all there, with the right lengths. Files that belong
// to none of them are removed.
func (s *Zone) loadRuns() (map[RunID]run, error) {
	vfs, runs := s.opts.FS, map[RunID]run{}
	switch journal, err := readAll(vfs, s.inRestore(journalFile), maxJournalBytes); {
	case err == nil && len(journal) > 0 && journal[0] > journalVersion:
		return nil, newerRestore(journal[0])
	case err == nil:
		var whole int
		if runs, whole = decodeJournal(journal); whole < len(journal) {
			s.log.Info("the list of what a restore has ends early", "folder", s.inZone(restoreName), "at", whole, "bytes", len(journal))
		}
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrCorrupt):
		return nil, err
	}
	names, err := vfs.List(s.inZone(restoreName))
	if err != nil {
		return nil, err
	}
	there := map[uint64]bool{}
	for _, name := range names {
		if number, ok := tableNumber(name); ok {
			there[number] = true
		}
	}
	used := map[uint64]bool{}
	for id, r := range runs {
		if !slices.ContainsFunc(r, func(t runTable) bool { return !there[t.number] || !s.hasBytes(t) }) {
			for _, t := range r {
				used[t.number] = true
			}
			continue
		}
		delete(runs, id)
		s.log.Info("a run of a restore is not whole", "folder", s.inZone(restoreName), "run", fmt.Sprintf("%x", id))
	}
	for _, name := range names {
		number, ok := tableNumber(name)
		if name == labelFile || name == journalFile || ok && used[number] {
			continue
		}
		if err := vfs.RemoveAll(s.inRestore(name)); err != nil {
			return nil, err
		}
	}
	return runs, nil
}

func (s *Zone) hasBytes(t runTable) bool {
	info, err := s.opts.FS.Stat(s.tablePath(t.number))
	return err == nil && !info.IsDir() && info.Size() == int64(t.bytes)
}

func tableNumber(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, tableSuffix)
	number, err := strconv.ParseUint(digits, 10, 63)
	return number, ok && err == nil && number > 0 && fmt.Sprintf(tableNameForm, number) == name
}
