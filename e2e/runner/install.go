package runner

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
)

// Install builds a program of another module at a version, with the dependencies in its own go.mod,
// unless out is that program already. Processes that install the same file take turns.
func Install(ctx context.Context, pkg, version, out string) (err error) {
	dir := filepath.Dir(out)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	unlock, err := lock(out + ".lock")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if info, err := buildinfo.ReadFile(out); err == nil && info.Path == pkg && info.Main.Version == version {
		return nil
	}
	bin, err := os.MkdirTemp(dir, "install-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(bin)) }()
	cmd := exec.CommandContext(ctx, "go", "install", "-trimpath", pkg+"@"+version)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOBIN="+bin)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go install %s@%s: %w\n%s", pkg, version, err, output)
	}
	return os.Rename(filepath.Join(bin, path.Base(pkg)), out)
}
