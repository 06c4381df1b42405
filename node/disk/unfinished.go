package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// unfinishedPrefix is the name prefix, followed by digits, of the temporary files that CometBFT
// writes before it renames them over another file (libs/tempfile/tempfile.go, WriteFileAtomic). A
// kill in between leaves such a file.
const unfinishedPrefix = "write-file-atomic-"

// RemoveUnfinished removes the temporary files that a killed CometBFT left in folders, and returns
// their number. No other process may be writing there. A folder need not exist.
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
			case !errors.Is(err, fs.ErrNotExist): // the same folder was listed twice
				errs = append(errs, err)
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return removed, fmt.Errorf("remove unfinished files: %w", err)
	}
	return removed, nil
}
