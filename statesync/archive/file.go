package archive

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// partial is added to the name of a file while it is written.
const partial = ".partial"

// WriteFile writes a snapshot to a file that gets its name when it is whole and durable:
//
//	FILE.partial ──write, sync──► rename ──► FILE, sync the folder
//
// An existing FILE is refused with ErrExists, unless overwrite says so; it stays until the new one
// is whole. FILE.partial goes when it fails. One that a kill left is written over, one that another
// process writes is refused.
func WriteFile(ctx context.Context, path string, overwrite bool, src Source, o Options) (Stats, error) {
	if err := checkTarget(path, overwrite); err != nil {
		return Stats{}, err
	}
	file, err := openPartial(path + partial)
	if err != nil {
		return Stats{}, err
	}
	stats, err := Write(ctx, file, src, o)
	if err == nil {
		err = file.Sync()
	}
	if err == nil {
		err = checkTarget(path, overwrite) // again: it took a while
	}
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		// removed first: the lock goes with the file
		return Stats{}, errors.Join(err, os.Remove(file.Name()), file.Close())
	}
	return stats, errors.Join(file.Close(), syncDir(filepath.Dir(path)))
}

// openPartial makes the file empty, once nobody else writes it.
func openPartial(path string) (*os.File, error) {
	// all nodes serve what is in it to everybody
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644) //nolint:gosec
	if err != nil {
		return nil, err
	}
	err = lock(file)
	if err == nil { // whoever wrote it may have given it its name between the two calls
		var now, opened os.FileInfo
		if now, err = os.Lstat(path); err == nil {
			opened, err = file.Stat()
		}
		if err == nil && !os.SameFile(now, opened) {
			err = errors.New("it was renamed")
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %s is being written by another process: %w", ErrExists, path, err), file.Close())
	}
	if err := file.Truncate(0); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func checkTarget(path string, overwrite bool) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%w: %s, which is no file", ErrExists, path)
	case !overwrite:
		return fmt.Errorf("%w: %s", ErrExists, path)
	}
	return nil
}

// syncDir makes a name durable.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// File is a snapshot file that is open.
type File struct {
	*Reader
	file *os.File
}

// OpenFile opens a snapshot file as Open does; the errors name it.
func OpenFile(path string) (*File, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a file")
	}
	var r *Reader
	if err == nil {
		r, err = Open(file, info.Size())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), file.Close())
	}
	return &File{r, file}, nil
}

// Close closes the file; none of its chunks may be in use.
func (f *File) Close() error { return f.file.Close() }
