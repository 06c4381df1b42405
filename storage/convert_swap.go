package storage

import (
	"bytes"
	"errors"
	"io/fs"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/starling-kv/starling/storage/internal/engine"
)

// A zone of layout 1 is converted when it is opened: Pebble does not open a database under another
// merger, so a whole new one is written, as a restore, in a folder within the zone's, which Pebble
// ignores. What it has copied when it is killed is not copied again. The folder's name says how far
// it came, and what the next Open does:
//
//	convert-made ──rename──► convert-whole ──rename──► convert-moved ──► removed
//	 copy what is missing     remove the files          move the files
//	                          of layout 1               one level up
//
// Until it is named convert-whole, the files of layout 1 are as they were, for the program that
// wrote them, too. Its lock is held from the first copied byte until they are gone.
const (
	convertMade  = "convert-made"
	convertWhole = "convert-whole"
	convertMoved = "convert-moved"
)

// errConverting is for who may not write.
var errConverting = errors.New("its conversion to a newer layout was interrupted: start starlingd, which finishes it")

// convertOld makes a zone that is not open one of the layout that this program writes. With
// opts.ReadOnly, it reports what layout the zone has instead. What it cannot find out is an error:
// nothing is removed on a guess.
func convertOld(dir string, opts Options) (layout byte, err error) {
	folder := stateFolder(dir, opts)
	whole, err := isThere(opts.FS, opts.FS.PathJoin(dir, convertWhole))
	if err != nil {
		return 0, folder.Err("open", err)
	}
	moved, err := isThere(opts.FS, opts.FS.PathJoin(dir, convertMoved))
	if err != nil {
		return 0, folder.Err("open", err)
	}
	switch {
	case opts.ReadOnly && (whole || moved):
		return 0, folder.Err("open", betweenLayouts(dir, opts.FS))
	case whole:
		if taken, err := takeWhole(dir, opts); taken || err != nil {
			return FormatVersion, err
		}
	case moved:
		return FormatVersion, swap(folder)
	}
	old, err := isLayout1(folder)
	switch {
	case err != nil:
		return 0, err
	case !old:
		return FormatVersion, nil
	case opts.ReadOnly:
		return layout1, nil
	}
	return FormatVersion, convert(dir, opts)
}

// isThere reports whether there is a file or a folder of that name.
func isThere(disk vfs.FS, path string) (bool, error) {
	_, err := disk.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// betweenLayouts returns errConverting, or ErrLocked if a process is at it.
func betweenLayouts(dir string, disk vfs.FS) error {
	lock, err := engine.Lock(disk, dir)
	switch {
	case errors.Is(err, ErrLocked):
		return err
	case err != nil: // who may not write the lock may still ask
		return errConverting
	}
	return errors.Join(errConverting, lock.Close())
}

// takeWhole ends a conversion of which convertWhole is there, and reports whether it did. It did
// not where the program that wrote layout 1 has changed the state since: then convertWhole is
// convertMade again, which is to be replaced.
func takeWhole(dir string, opts Options) (taken bool, err error) {
	old, err := openLayout1(dir, opts)
	switch {
	case errors.Is(err, ErrCorrupt), errors.Is(err, pebble.ErrDBDoesNotExist):
		// Some of its files are removed.
		return true, swap(stateFolder(dir, opts))
	case err != nil:
		return false, err
	}
	same, err := old.isCopiedTo(convertWhole)
	switch {
	case err != nil:
	case same:
		taken, err = true, old.folder.Err("convert", replaceOld(dir, opts.FS))
	default:
		old.log.Info("the state has changed since it was converted: it is converted again", "folder", dir, "height", old.Safe())
		made := old.inZone(convertMade)
		if err = opts.FS.RemoveAll(made); err == nil {
			err = opts.FS.Rename(old.inZone(convertWhole), made)
		}
		if err == nil {
			err = engine.SyncDir(opts.FS, dir)
		}
		err = old.folder.Err("convert", err)
	}
	return taken, errors.Join(err, old.Close())
}

// openLayout1 opens the zone of layout 1 for reading only, which locks it all the same.
func openLayout1(dir string, opts Options) (*Zone, error) {
	opts.ReadOnly = true
	return openLayout(dir, opts, layout1)
}

// isCopiedTo reports whether the zone in that folder within s has the state of s. One that is
// damaged has not. If s has none, there is nothing that could be newer.
func (s *Zone) isCopiedTo(name string) (bool, error) {
	meta, ok := s.Meta()
	if !ok {
		return true, nil
	}
	opts := s.opts
	opts.PinDir = s.inZone(name) + "-pins" // there are none
	zone, err := openLayout(s.inZone(name), opts, FormatVersion)
	if errors.Is(err, ErrCorrupt) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	copied, ok := zone.Meta()
	return ok && bytes.Equal(copied.encode(), meta.encode()), zone.Close()
}

// swap is replaceOld where the zone is not open.
func swap(f engine.Folder) error {
	lock, err := engine.Lock(f.FS, f.Dir)
	if err == nil {
		err = errors.Join(replaceOld(f.Dir, f.FS), lock.Close())
	}
	return f.Err("convert", err)
}

// replaceOld replaces the files of layout 1 by those in convertWhole or convertMoved. The caller
// holds the lock of the zone.
func replaceOld(dir string, disk vfs.FS) error {
	if err := removeOld(dir, disk); err != nil {
		return err
	}
	return moveUp(dir, disk)
}

func removeOld(dir string, disk vfs.FS) error {
	whole, moved := disk.PathJoin(dir, convertWhole), disk.PathJoin(dir, convertMoved)
	if there, err := isThere(disk, whole); !there {
		return err // nil: they are gone
	}
	names, err := disk.List(dir)
	if err != nil {
		return err
	}
	// First what names the list of files: without it, no program opens those that are left.
	for _, name := range names {
		if engine.IsListMarker(name) {
			if err := disk.Remove(disk.PathJoin(dir, name)); err != nil {
				return err
			}
		}
	}
	if err := engine.SyncDir(disk, dir); err != nil {
		return err
	}
	for _, name := range slices.DeleteFunc(names, engine.IsListMarker) {
		if name != convertWhole && !engine.IsLock(name) {
			if err := disk.RemoveAll(disk.PathJoin(dir, name)); err != nil {
				return err
			}
		}
	}
	// Only when they are gone may the others come, which have the same names.
	if err := engine.SyncDir(disk, dir); err != nil {
		return err
	}
	if err := disk.Rename(whole, moved); err != nil {
		return err
	}
	return engine.SyncDir(disk, dir)
}

func moveUp(dir string, disk vfs.FS) error {
	moved := disk.PathJoin(dir, convertMoved)
	names, err := disk.List(moved)
	if err != nil {
		return err
	}
	for _, name := range names {
		path := disk.PathJoin(moved, name)
		info, err := disk.Stat(path)
		if err != nil {
			return err
		}
		if engine.IsLock(name) || info.IsDir() { // else what a restore has left
			continue
		}
		if err := disk.Rename(path, disk.PathJoin(dir, name)); err != nil {
			return err
		}
	}
	if err := engine.SyncDir(disk, dir); err != nil {
		return err
	}
	if err := disk.RemoveAll(moved); err != nil {
		return err
	}
	return engine.SyncDir(disk, dir)
}
