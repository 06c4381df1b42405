//go:build !linux

package harness

import "syscall"

// SyncDisk does nothing here.
func SyncDisk() {}

// ForgetFiles does nothing here.
func ForgetFiles(string) {}

// attributes gives each child its own process group, so that Ctrl-C reaches it only through this
// process.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
