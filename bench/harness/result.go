package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// ErrInterrupted is returned when a signal ends a run before it has a result.
var ErrInterrupted = errors.New("interrupted: nothing was written")

// Ratio returns a/b, or 0 if b is 0 because nothing was measured.
func Ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// InFolder calls measure with a new folder in progress.Dir, and removes the folder afterwards.
func InFolder(ctx context.Context, progress *Progress, measure func(dir string) error) error {
	dir, err := os.MkdirTemp(progress.Dir, "starling-bench-")
	if err != nil {
		return fmt.Errorf("creating a folder for the run's files (choose one with --dir): %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // anything left is in a temporary folder
	defer progress.Run()()
	err = measure(dir)
	if ctx.Err() != nil {
		return ErrInterrupted
	}
	return err
}
