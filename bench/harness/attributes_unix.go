//go:build unix && !linux

package harness

import "syscall"

// attributes gives each child its own process group, so that Ctrl-C reaches it only through this
// process.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
