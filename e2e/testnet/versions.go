package testnet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/starling-kv/starling/e2e/runner"
)

// ErrNoVersion says that a version cannot be built here: this is not a clone, or not a complete
// one.
var ErrNoVersion = errors.New("no such version here")

// versions are the earlier builds that networks begin with, by name. A tag of the same name takes
// precedence: see commitOf.
var versions = map[string]string{
	// The oldest build with today's settings and formats on disk, which changed before the first
	// release: a home of an older build is refused.
	Preview: "8edf7cec8731005aa34841e55cb37118ed7a4dff",
}

// Preview is the version that manifests and generated networks upgrade from.
const Preview = "preview"

// BuildVersion builds starlingd from a version: a name of versions, a tag or a commit. It returns
// the path of the program, which is built once for each commit.
func BuildVersion(ctx context.Context, version string) (string, error) {
	root, err := runner.Root(ctx)
	if err != nil {
		return "", err
	}
	return buildVersion(ctx, root, filepath.Join(root, "build", "e2e", "versions"), version)
}

func buildVersion(ctx context.Context, root, into, version string) (program string, err error) {
	commit, err := commitOf(ctx, root, version)
	if err != nil {
		return "", err
	}
	program = filepath.Join(into, commit, "starlingd")
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	source, err := os.MkdirTemp("", "starling-version-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(source)) }()
	archive := filepath.Join(source, ".archive.tar")
	if _, err := git(ctx, root, "archive", "--format=tar", "--output="+archive, commit); err != nil {
		return "", err
	}
	if out, err := exec.CommandContext(ctx, "tar", "-xf", archive, "-C", source).CombinedOutput(); err != nil {
		return "", fmt.Errorf("tar: %w\n%s", err, out)
	}
	unfinished := program + ".unfinished" // so that a killed build is not taken for a complete one
	if err := runner.Build(ctx, source, "./cmd/starlingd", unfinished); err != nil {
		return "", fmt.Errorf("version %s: %w", version, err)
	}
	return program, os.Rename(unfinished, program)
}

// commitOf returns the commit of a version: of the tag with that name, which not every clone has;
// otherwise of its entry in versions; otherwise of any revision with that name.
func commitOf(ctx context.Context, root, version string) (commit string, err error) {
	candidates := []string{"refs/tags/" + version}
	if commit, is := versions[version]; is {
		candidates = append(candidates, commit)
	} else {
		candidates = append(candidates, version)
	}
	for _, candidate := range candidates {
		var found []byte
		found, err = git(ctx, root, "rev-parse", "--verify", "--quiet", "--end-of-options", candidate+"^{commit}")
		if err == nil {
			return strings.TrimSpace(string(found)), nil
		}
	}
	if shallow, asked := git(ctx, root, "rev-parse", "--is-shallow-repository"); asked == nil && strings.TrimSpace(string(shallow)) == "true" {
		return "", fmt.Errorf("%w: %s: the clone is shallow: git fetch --unshallow", ErrNoVersion, version)
	}
	return "", fmt.Errorf("%w: %s: %w", ErrNoVersion, version, err)
}

// git runs git in a clone, whatever user owns it.
func git(ctx context.Context, root string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-c", "safe.directory=*", "-C", root}, args...)...)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return nil, fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return nil, fmt.Errorf("git %s: %w", args[0], err)
	}
	return out, nil
}
