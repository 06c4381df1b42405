package harness

import (
	"os"
	"syscall"
)

// Processes cannot be stopped here: background work of one contestant disturbs the others.
func freeze(*os.Process)  {}
func proceed(*os.Process) {}

func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
