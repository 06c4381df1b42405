// Package smalldisk creates disks that fill up: tmpfs of a given size. It needs Linux.
//
//	Mount, Resize, Free, Unmount     for a program that runs as root
//	Alone ── Small                   for a test: its mounts end with its own process
package smalldisk

import "errors"

// ErrNotPermitted is the error of Mount if this process may not mount a disk.
var ErrNotPermitted = errors.New("a small disk is a tmpfs, which needs root on Linux")
