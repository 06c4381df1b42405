package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// BuildBeside builds the program of a module in a folder of bench in dir, and returns its path. The
// first time takes a minute or two. The flag of the same name takes a program that is built.
func BuildBeside(ctx context.Context, module, dir string) (string, error) {
	source, err := sourceOf(module)
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, module)
	if runtime.GOOS == "windows" {
		program += ".exe"
	}
	// as `make lint` compiles it, so that the build cache serves both
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-mod=readonly", "-o", program, ".")
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s could not be built in %q: %w\n%s", module, source, err, strings.TrimSpace(string(out)))
	}
	return program, nil
}

// sourceOf finds the folder of a module: beside the source of this file, or else in the working
// directory.
func sourceOf(module string) (string, error) {
	candidates := []string{module, filepath.Join("bench", module)}
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		candidates = append([]string{filepath.Join(filepath.Dir(file), "..", module)}, candidates...)
	}
	for _, dir := range candidates {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Abs(dir)
		}
	}
	return "", fmt.Errorf("no source of %s in %q: run this in the folder bench, or name a built program with --%s", module, candidates, module)
}
