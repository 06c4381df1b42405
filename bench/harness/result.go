package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
)

// ErrInterrupted is returned when a signal ends a run before there is a result.
var ErrInterrupted = errors.New("interrupted: nothing was written")

// Machine is where a result was measured.
type Machine struct {
	OS   string `json:"os"`
	Arch string `json:"arch"`
	CPUs int    `json:"cpus"`
	Go   string `json:"go"`
}

// ThisMachine describes the machine that this process runs on.
func ThisMachine() Machine {
	return Machine{OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.GOMAXPROCS(0), Go: runtime.Version()}
}

// Ratio is a/b, or 0 where b is 0 because nothing was measured.
func Ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// InFolder runs measure with a new folder in parent (default: the system's temporary one), and
// removes it afterwards. what names its contents for messages.
func InFolder(ctx context.Context, parent, what string, progress *Progress, measure func(dir string) error) error {
	dir, err := os.MkdirTemp(parent, "starling-bench-")
	if err != nil {
		return fmt.Errorf("no folder for the %s (choose one with --dir): %w", what, err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // what cannot be removed is in a temporary folder
	defer progress.Run()()
	err = measure(dir)
	if ctx.Err() != nil {
		return ErrInterrupted
	}
	return err
}
