package runner

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Module is the path of the module that the programs of this repository belong to.
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

// Build builds the program of a package, named as `go build` takes it in folder dir. Where nothing has changed
// since the last call with the same out, Go's build cache makes that a matter of a second.
func Build(ctx context.Context, dir, pkg, out string) error {
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	// Without -buildvcs=false a copy of the repository that git distrusts would not build.
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", out, pkg)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as `make build`: static, so that an image FROM scratch can hold it
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", pkg, err, output)
	}
	return nil
}
