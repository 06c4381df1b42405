// Package durable replaces and renames files such that a power failure leaves either the old
// content or the new one.
//
//	Write ──► temporary file ──write, sync──► rename ──► PATH ──sync──► folder
//
// A rename alone is not enough: until the folder is synced, the old name may come back. Package
// onvfs does the same for Pebble's file systems.
package durable

import (
	"errors"
	"os"
	"path/filepath"
)

// syncFolder is replaced by tests.
var syncFolder = func(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// SyncDir makes the names in a folder durable.
func SyncDir(path string) error { return syncFolder(path) }

// Rename renames a folder or a file whose content is durable. The new name is durable once Rename
// returns nil.
func Rename(from, to string) error { return place(os.Rename, from, to) }

func place(give func(from, to string) error, from, to string) error {
	if err := give(from, to); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(to))
}

// Write creates or replaces a file. The folder must exist.
func Write(path string, content []byte, mode os.FileMode) error {
	return write(os.Rename, path, content, mode)
}

// WriteNew creates a file. It fails with fs.ErrExist if the file exists.
func WriteNew(path string, content []byte, mode os.FileMode) error {
	return write(os.Link, path, content, mode)
}

func write(give func(from, to string) error, path string, content []byte, mode os.FileMode) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer func() {
		if gone := os.Remove(f.Name()); !errors.Is(gone, os.ErrNotExist) { // gone if it was renamed
			err = errors.Join(err, gone)
		}
	}()
	_, err = f.Write(content)
	if err := errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	return place(give, f.Name(), path)
}
