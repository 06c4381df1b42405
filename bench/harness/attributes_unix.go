//go:build unix && !linux

package harness

import "syscall"

// attributes gives each child a process group of its own, so that Ctrl-C reaches it only through us.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
