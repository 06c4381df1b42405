//go:build unix && !linux

package runner

import "syscall"

// attributes gives each node a separate process group, so that Ctrl-C reaches it only through us,
// in order.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
