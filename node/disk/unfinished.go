package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// unfinishedPrefix begins the name of a file that CometBFT writes before it renames it over another
// one (libs/tempfile/tempfile.go, WriteFileAtomic); digits follow. A kill in between leaves it.
const unfinishedPrefix = "write-file-atomic-"

// RemoveUnfinished removes the files that a killed CometBFT has not finished in some folders, and
// returns how many. No other process may be writing there. A folder need not exist.
func RemoveUnfinished(folders ...string) (removed int, err error) {
	var errs []error
	for _, folder := range folders {
		entries, err := os.ReadDir(folder)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, entry := range entries {
			number, is := strings.CutPrefix(entry.Name(), unfinishedPrefix)
			if !is || number == "" || strings.Trim(number, "0123456789") != "" || !entry.Type().IsRegular() {
				continue
			}
			switch err := os.Remove(filepath.Join(folder, entry.Name())); {
			case err == nil:
				removed++
			case !errors.Is(err, fs.ErrNotExist): // the folder was named twice
				errs = append(errs, err)
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return removed, fmt.Errorf("remove unfinished files: %w", err)
	}
	return removed, nil
}
