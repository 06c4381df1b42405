package testnet

import (
	"errors"
	"fmt"
	"syscall"
)

// mountDisk mounts an empty disk of a size at a folder.
func mountDisk(at string, bytes int64) error {
	err := syscall.Mount("none", at, "tmpfs", 0, fmt.Sprintf("size=%d", bytes))
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES):
		return fmt.Errorf("%w: %w", errNoDisk, err)
	default:
		return fmt.Errorf("mounting a tmpfs at %s: %w", at, err)
	}
}

func unmountDisk(at string) error {
	if err := syscall.Unmount(at, syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("unmounting %s: %w", at, err)
	}
	return nil
}

// freeBytes is what a disk has left.
func freeBytes(disk string) (int64, error) {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(disk, &stat); err != nil {
		return 0, fmt.Errorf("%s: %w", disk, err)
	}
	return int64(stat.Bavail) * stat.Bsize, nil
}
