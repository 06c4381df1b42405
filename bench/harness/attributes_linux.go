package harness

import "syscall"

// attributes gives each child a process group of its own, so that Ctrl-C reaches it only through us. Where this process itself
// is killed, the kernel ends the child (prctl(2), PR_SET_PDEATHSIG), stopped or not.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
