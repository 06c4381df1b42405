package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Module is the path of the module of this repository's programs.
const Module = "github.com/starling-kv/starling"

// Root returns the folder of the module, as seen from the current folder.
func Root(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", Module)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go list -m %s: %w (run this inside a clone of the repository)", Module, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// Program builds a program of this module, named by its folder (./cmd/starlingd), and returns its
// path, which is always in build/programs of the module. So one build of starlingd serves all
// tests, the demonstration and the networks.
func Program(ctx context.Context, pkg string) (string, error) {
	root, err := Root(ctx)
	if err != nil {
		return "", err
	}
	program := filepath.Join(root, "build", "programs", filepath.Base(pkg))
	return program, Build(ctx, root, pkg, program)
}

// Build builds the program of a package, named as `go build` accepts it in folder dir. If nothing
// has changed since the last call with the same out, the file stays unchanged and the call takes
// about a second. Processes that build the same file take turns.
//
// The program is compiled exactly as `make build` and `make test` compile it, so that Go's build
// cache serves all of them: static, which an image FROM scratch needs, and without the folder's
// name.
func Build(ctx context.Context, dir, pkg, out string, flags ...string) (err error) {
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	unlock, err := lock(out + ".lock")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	// Without -buildvcs=false a copy of the repository that git distrusts would not build.
	args := append([]string{"build", "-trimpath", "-buildvcs=false", "-o", out}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", pkg, err, output)
	}
	return nil
}

// lock waits until no other process holds the lock file, and takes it. The kernel releases it when
// the process ends for any reason.
func lock(path string) (unlock func() error, err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %q: %w", path, err), file.Close())
	}
	return file.Close, nil // which releases it
}
