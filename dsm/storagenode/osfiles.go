package storagenode

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"
)

var (
	// ErrDamaged is wrapped where bytes on disk are not those that were written, with the file, the
	// offset, and what to do.
	ErrDamaged = errors.New("damaged")
	// ErrOther: the file is of another range, or of another chain.
	ErrOther = errors.New("of another range or chain")
	// ErrGap: the heights on disk are not consecutive.
	ErrGap = errors.New("heights are missing")
)

// remedy ends an error that no restart repairs. What a range holds is nowhere the only copy: other
// replicas have it, and nodes in local mode.
const remedy = "move the range's folder away, and restore the range from another replica"

// MaxLabelBytes is the limit of a label, which names chain and range in every file.
const MaxLabelBytes = 16 << 10

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func sumOf(parts ...[]byte) (sum uint32) {
	for _, b := range parts {
		sum = crc32.Update(sum, castagnoli, b)
	}
	return sum
}

// damaged returns ErrDamaged for a place in a file.
func damaged(path string, offset int64, format string, args ...any) error {
	return fmt.Errorf("%w: file %s, at offset %d: %s; %s", ErrDamaged, path, offset, fmt.Sprintf(format, args...), remedy)
}

// inFile names the file, which errors of reading and writing do not do on every file system.
func inFile(path string, err error) error { return fmt.Errorf("file %s: %w", path, err) }

// syncDir makes the names in a folder durable.
func syncDir(fsys vfs.FS, path string) error {
	dir, err := fsys.OpenDir(path)
	if err != nil {
		return inFile(path, err)
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		return inFile(path, err)
	}
	return nil
}

// makeDir makes a folder, whose name is durable then.
func makeDir(fsys vfs.FS, path string) error {
	if err := fsys.MkdirAll(path, 0o755); err != nil {
		return inFile(path, err)
	}
	return syncDir(fsys, fsys.PathDir(path))
}
