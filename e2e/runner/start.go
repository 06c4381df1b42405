package runner

import (
	"os/exec"
	"runtime"
	"sync"
)

// StartCommand starts cmd on a thread that lives as long as this process. The kernel sends a
// child's Pdeathsig when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG). Any other
// thread may end: Go ends the thread of a goroutine that returns without runtime.UnlockOSThread.
func StartCommand(cmd *exec.Cmd) error {
	started := make(chan error)
	starter() <- func() { started <- cmd.Start() }
	return <-started
}

var starter = sync.OnceValue(func() chan<- func() {
	starts := make(chan func())
	go func() {
		runtime.LockOSThread()
		for start := range starts { // it is never closed
			start()
		}
	}()
	return starts
})
