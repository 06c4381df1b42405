package harness

import (
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// SyncDisk waits until the files of all processes are on disk, so that the next contestant does not
// wait for them.
func SyncDisk() { unix.Sync() }

// ForgetFiles drops the files below dir from the page cache (posix_fadvise(2)). Call SyncDisk
// first: dirty pages stay.
func ForgetFiles(dir string) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return
	}
	defer func() { _ = root.Close() }() // opened read-only
	_ = fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil //nolint:nilerr // a removed file is not in the cache
		}
		if f, err := root.Open(path); err == nil {
			_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
			f.Close()
		}
		return nil
	})
}

// attributes gives each child its own process group, so that Ctrl-C reaches it only through this
// process. If this process is killed, the kernel kills the child, stopped or not (see
// runner.StartCommand).
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
