package harness

import "syscall"

// attributes gives each child its own process group, so that Ctrl-C reaches it only through this
// process. If this process is killed, the kernel kills the child (prctl(2), PR_SET_PDEATHSIG),
// stopped or not.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
