//go:build !linux

package smalldisk

// Mount mounts an empty disk of the given size at a folder.
func Mount(string, int64) error { return ErrNotPermitted }

// Unmount removes a disk.
func Unmount(string) error { return nil }

// Free returns the number of free bytes of a disk.
func Free(string) (int64, error) { return 0, ErrNotPermitted }
