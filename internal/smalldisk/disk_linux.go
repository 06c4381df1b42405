package smalldisk

import (
	"errors"
	"fmt"
	"syscall"
)

// Mount mounts an empty disk of the given size at a folder.
func Mount(at string, bytes int64) error { return mount(at, bytes, 0) }

// Resize changes the size of a disk.
func Resize(at string, bytes int64) error { return mount(at, bytes, syscall.MS_REMOUNT) }

func mount(at string, bytes int64, flags uintptr) error {
	err := syscall.Mount("none", at, "tmpfs", flags, fmt.Sprintf("size=%d", bytes))
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES):
		return fmt.Errorf("%w: %w", ErrNotPermitted, err)
	default:
		return fmt.Errorf("mount a tmpfs at %s: %w", at, err)
	}
}

// Unmount removes a disk.
func Unmount(at string) error {
	if err := syscall.Unmount(at, syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", at, err)
	}
	return nil
}

// Free returns the number of free bytes of a disk.
func Free(at string) (int64, error) {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(at, &stat); err != nil {
		return 0, err
	}
	return int64(stat.Bavail) * stat.Bsize, nil
}
