package harness

import (
	"os"
	"syscall"
)

// Nothing here stops a process: what goes on in the background of one contestant disturbs the others.
func freeze(*os.Process)  {}
func proceed(*os.Process) {}

func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
