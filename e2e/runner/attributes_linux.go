package runner

import "syscall"

// attributes gives each node a separate process group, so that Ctrl-C reaches it only through us,
// in order. If this process itself is killed, the kernel ends the node (see StartCommand).
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
