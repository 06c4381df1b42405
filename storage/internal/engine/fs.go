package engine

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// folderFS is the file system as Pebble is given it.
//
//   - It tells a folder that is locked from one that cannot be written.
//   - It makes names durable in an order that a crash cannot turn round: Pebble syncs a folder after it has made a new list of files
//     and the marker that says which list counts, so that the marker alone could survive.
//   - If that sync fails, or a write-ahead log cannot be written, Pebble panics: here Fatalf comes before.
type folderFS struct {
	vfs.FS
	fatalf   func(format string, args ...any)
	logged   bool // what is written goes to a write-ahead log first
	opened   atomic.Bool
	unsynced atomic.Bool // a marker or a log was made, and its name is not durable yet
}

func (f *folderFS) Lock(name string) (io.Closer, error) {
	lock, err := f.FS.Lock(name)
	var cannotCreate *fs.PathError
	if err != nil && !errors.As(err, &cannotCreate) && !IsDiskFull(err) {
		return nil, fmt.Errorf("%w (%w)", ErrLocked, err)
	}
	return lock, err
}

// Lock locks a folder as opening its database does, by the file LOCK in it.
func Lock(fs vfs.FS, dir string) (io.Closer, error) {
	return (&folderFS{FS: fs}).Lock(fs.PathJoin(dir, lockFile))
}

// IsLock reports whether a file in a database's folder is the one that locks it.
func IsLock(name string) bool { return name == lockFile }

// IsListMarker reports whether a file in a database's folder names its list of files. Without one,
// Open refuses what is left of the database.
func IsListMarker(name string) bool { return strings.HasPrefix(name, "marker."+listMarker+".") }

const lockFile = "LOCK" // Pebble's

func (f *folderFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasPrefix(f.PathBase(name), "marker.") {
		if err := SyncDir(f.FS, f.PathDir(name)); err != nil {
			return nil, err
		}
		f.unsynced.Store(true)
	}
	if f.logged && isLog(name) {
		return f.begun(f.FS.Create(name, category))
	}
	return f.FS.Create(name, category)
}

func (f *folderFS) OpenDir(name string) (vfs.File, error) {
	dir, err := f.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &folder{dir, f}, nil
}

func (f *folderFS) Unwrap() vfs.FS { return f.FS }

type folder struct {
	vfs.File
	fs *folderFS
}

// syncError marks what Pebble may panic with.
type syncError struct{ error }

func (e syncError) Unwrap() error { return e.error }

func (d *folder) Sync() error {
	err := d.File.Sync()
	if err == nil {
		d.fs.unsynced.Store(false)
		return nil
	}
	if d.fs.opened.Load() && d.fs.unsynced.Load() {
		d.fs.fatalf("folder sync failed: %v", err)
	}
	return syncError{err}
}

// SyncDir makes the names in a folder durable.
func SyncDir(fs vfs.FS, path string) error {
	dir, err := fs.OpenDir(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
