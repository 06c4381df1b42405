// Package onvfs is package durable for Pebble's file systems, whose crashes tests can simulate.
package onvfs

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// SyncDir makes the names in a folder durable.
func SyncDir(fs vfs.FS, path string) error {
	dir, err := fs.OpenDir(path)
	if err != nil {
		return inFolder(path, err)
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		return inFolder(path, err)
	}
	return nil
}

// inFolder adds the folder name, which errors of some file systems do not contain.
func inFolder(path string, err error) error { return fmt.Errorf("folder %s: %w", path, err) }

// MakeDir creates a folder and its parents unless it exists. All their names are durable
// afterwards.
func MakeDir(fs vfs.FS, path string) error {
	parent := fs.PathDir(path)
	if _, err := fs.Stat(path); err == nil {
		return SyncDir(fs, parent) // its creator may have been killed before the sync
	}
	if _, err := fs.Stat(parent); err != nil && parent != path {
		if err := MakeDir(fs, parent); err != nil {
			return err
		}
	}
	if err := fs.MkdirAll(path, 0o755); err != nil {
		return err
	}
	return SyncDir(fs, parent)
}

// Rename renames a folder or a file whose content is durable. The new name is durable once Rename
// returns nil.
func Rename(fs vfs.FS, from, to string) error {
	if err := fs.Rename(from, to); err != nil {
		return err
	}
	return SyncDir(fs, fs.PathDir(to))
}

// temporary is the suffix of a file that is about to replace another.
const temporary = ".new"

// Write creates or replaces a file. A path must not be written concurrently. If a crash leaves
// PATH.new behind, the next Write of the same path overwrites it.
func Write(fs vfs.FS, path string, content []byte) error {
	file, err := fs.Create(path+temporary, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, fs.Remove(path+temporary)) // the disk may be full
	}
	return Rename(fs, path+temporary, path)
}
