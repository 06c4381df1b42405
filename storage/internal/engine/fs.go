package engine

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/starling-kv/starling/internal/durable/onvfs"
)

// folderFS is the file system that is passed to Pebble.
//
//   - It distinguishes a locked folder from one that cannot be written.
//   - It makes names durable in an order that survives a crash: Pebble syncs a folder only after it
//     has created a new list of files and the marker that names the current list, so that the marker
//     alone could survive.
//   - If that sync fails, or a write-ahead log cannot be written, Pebble panics; folderFS calls
//     Fatalf first.
type folderFS struct {
	vfs.FS
	fatalf   func(format string, args ...any)
	logged   bool // writes go to a write-ahead log first
	opened   atomic.Bool
	unsynced atomic.Bool // a marker or a log was created, and its name is not durable yet
}

func (f *folderFS) Lock(name string) (io.Closer, error) {
	lock, err := f.FS.Lock(name)
	var cannotCreate *fs.PathError
	if err != nil && !errors.As(err, &cannotCreate) && !IsDiskFull(err) {
		return nil, fmt.Errorf("%w (%w)", ErrLocked, err)
	}
	return lock, err
}

func (f *folderFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasPrefix(f.PathBase(name), "marker.") {
		if err := onvfs.SyncDir(f.FS, f.PathDir(name)); err != nil {
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

// syncError marks an error that Pebble may panic with.
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
