package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
)

// ErrInterrupted is the end by a signal before there was a result.
var ErrInterrupted = errors.New("interrupted: nothing was written")

// Machine says where a result was measured.
type Machine struct {
	OS   string `json:"os"`
	Arch string `json:"arch"`
	CPUs int    `json:"cpus"`
	Go   string `json:"go"`
}

// ThisMachine is the one that this process runs on.
func ThisMachine() Machine {
	return Machine{OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.GOMAXPROCS(0), Go: runtime.Version()}
}

// Ratio is 0 where there is nothing to compare with.
func Ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// InFolder runs measure with a folder in parent that is removed afterwards; what says what goes into it.
func InFolder(ctx context.Context, parent, what string, progress *Progress, measure func(dir string) error) error {
	dir, err := os.MkdirTemp(parent, "starling-bench-")
	if err != nil {
		return fmt.Errorf("no folder for the %s (--dir says where): %w", what, err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // what stays is in a temporary folder
	defer progress.Run()()
	err = measure(dir)
	if ctx.Err() != nil {
		return ErrInterrupted
	}
	return err
}
