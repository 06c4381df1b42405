package harness

import (
	"context"
	"path/filepath"

	"github.com/starling-kv/starling/e2e/runner"
)

// Build builds the program of pkg, a package path relative to a folder of the repository, and
// returns the program's path. If given names a program that is already built, it returns given. An
// unchanged program takes about a second.
func Build(ctx context.Context, given, folder, pkg string, progress *Progress) (string, error) {
	if given != "" {
		return filepath.Abs(given)
	}
	root, err := runner.Root(ctx)
	if err != nil {
		return "", err
	}
	folder = filepath.Join(root, folder)
	name := filepath.Base(filepath.Join(folder, pkg))
	progress.Begin("build", "programs", 1)
	progress.Working(name)
	program := filepath.Join(root, "build", "programs", name)
	if err := runner.Build(ctx, folder, pkg, program); err != nil {
		return "", err
	}
	progress.Add(1)
	return program, nil
}
