//go:build !linux

package testnet

// Elsewhere there are no small disks.

func mountDisk(string, int64) error { return errNoDisk }

func unmountDisk(string) error { return nil }

func freeBytes(string) (int64, error) { return 0, errNoDisk }
