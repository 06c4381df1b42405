//go:build linux

package storagebench

import (
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// syncDisk waits until all files are on the disk, whoever wrote them.
func syncDisk() { unix.Sync() }

// cpuTime is the CPU time that this process has used, user and system.
func cpuTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// forgetFiles empties the page cache of the files below dir (posix_fadvise(2); syncDisk has made
// them clean).
func forgetFiles(dir string) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return
	}
	defer func() { _ = root.Close() }() // opened for reading only
	_ = fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil //nolint:nilerr // a file that is gone is not in the cache either
		}
		if f, err := root.Open(path); err == nil {
			_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
			f.Close()
		}
		return nil
	})
}
