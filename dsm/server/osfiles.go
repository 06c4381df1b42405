package server

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

var (
	// ErrDamaged: bytes on disk differ from those that were written. Its message names the file
	// and the offset.
	ErrDamaged = errors.New("damaged")
	// ErrOther: the file belongs to another range or another chain.
	ErrOther = errors.New("of another range or chain")
	// ErrGap: the heights on disk are not consecutive.
	ErrGap = errors.New("heights are missing")
)

// MaxLabelBytes limits the label that identifies chain and range in every file.
const MaxLabelBytes = 16 << 10

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// numbered parses the height in a file name.
func numbered(name, suffix string) (int64, bool) {
	digits, is := strings.CutSuffix(name, suffix)
	if !is || len(digits) != nameDigits {
		return 0, false
	}
	height, err := strconv.ParseInt(digits, 10, 64)
	return height, err == nil && height >= 0
}

const nameDigits = 20

func numberedName(height int64, suffix string) string {
	return fmt.Sprintf("%0*d%s", nameDigits, height, suffix)
}

// damaged returns ErrDamaged for an offset in a file.
func damaged(path string, offset int64, format string, args ...any) error {
	return fmt.Errorf("%w: file %s, at offset %d: %s", ErrDamaged, path, offset, fmt.Sprintf(format, args...))
}

// inFile adds the file name, which I/O errors of some file systems do not contain.
func inFile(path string, err error) error { return fmt.Errorf("file %s: %w", path, err) }
