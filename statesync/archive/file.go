package archive

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/starling-kv/starling/internal/durable"
)

// partial is the suffix of a file while it is written.
const partial = ".partial"

// WriteFile writes a snapshot to a file, which gets its name once it is complete and durable:
//
//	FILE.partial ──write, sync──► rename ──► FILE, sync the folder
//
// If FILE exists, WriteFile fails with ErrExists unless overwrite is set; the existing file stays
// until the new one is complete. On failure WriteFile removes FILE.partial. It overwrites a
// FILE.partial left by a killed process, and fails if another process is writing it.
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
		err = checkTarget(path, overwrite) // again: writing may have taken long
	}
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		// remove first: the lock is released with the file
		return Stats{}, errors.Join(err, os.Remove(file.Name()), file.Close())
	}
	return stats, errors.Join(file.Close(), durable.SyncDir(filepath.Dir(path)))
}

// openPartial opens and empties the file. It fails while another process writes it.
func openPartial(path string) (*os.File, error) {
	// world-readable: nodes serve the same content to any peer
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644) //nolint:gosec
	if err != nil {
		return nil, err
	}
	err = lock(file)
	if err == nil { // another process may have renamed it between the two calls
		var now, opened os.FileInfo
		if now, err = os.Lstat(path); err == nil {
			opened, err = file.Stat()
		}
		if err == nil && !os.SameFile(now, opened) {
			err = errors.New("the file was renamed")
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
		return fmt.Errorf("%w: %s, which is not a regular file", ErrExists, path)
	case !overwrite:
		return fmt.Errorf("%w: %s", ErrExists, path)
	}
	return nil
}

// File is an open snapshot file.
type File struct {
	*Reader
	file *os.File
}

// OpenFile opens a snapshot file like Open; its errors contain the path.
func OpenFile(path string) (*File, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
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

// Close closes the file. None of its chunks may be in use.
func (f *File) Close() error { return f.file.Close() }
