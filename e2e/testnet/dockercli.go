package testnet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Labels by which containers, networks and images are found again.
const (
	// on containers and networks: the process that made them
	ownerLabel     = "io.starling-kv.e2e.owner"
	imageLabel     = "io.starling-kv.e2e.image"
	composeProject = "com.docker.compose.project"
)

// docker runs Docker's command line and returns its trimmed output.
func docker(ctx context.Context, args ...string) (string, error) {
	return command(ctx, "docker", args...)
}

// command runs a program of Docker. An error contains its output.
func command(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	// Ctrl-C must reach only this process, which then cleans up
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, bytes.TrimSpace(append(stdout.Bytes(), stderr.Bytes()...)))
	}
	return string(bytes.TrimSpace(stdout.Bytes())), nil
}

// findCompose returns the command for compose: the plugin of Docker, or the older separate program.
func findCompose(ctx context.Context) ([]string, error) {
	for _, words := range [][]string{{"docker", "compose"}, {"docker-compose"}} {
		if _, err := command(ctx, words[0], append(words[1:], "version")...); err == nil {
			return words, nil
		}
	}
	return nil, errors.New("neither `docker compose` nor docker-compose is installed: install docker-compose")
}

// removeLeftovers removes containers and networks whose owner was killed before it could remove
// them.
func removeLeftovers(ctx context.Context) error {
	format := fmt.Sprintf(`{{.Label %q}} {{.Label %q}}`, ownerLabel, composeProject)
	containers, err := docker(ctx, "ps", "--all", "--filter", "label="+ownerLabel, "--format", format)
	if err != nil {
		return err
	}
	networks, err := docker(ctx, "network", "ls", "--filter", "label="+ownerLabel, "--format", format)
	if err != nil {
		return err
	}
	removed := map[string]bool{}
	for line := range strings.Lines(containers + "\n" + networks) {
		owner, project, found := strings.Cut(strings.TrimSpace(line), " ")
		if !found || removed[project] || runs(owner) {
			continue
		}
		removed[project] = true
		if err := removeProject(ctx, project); err != nil {
			return err
		}
	}
	return nil
}

// runs reports whether a process with this id exists.
func runs(pid string) bool {
	number, err := strconv.Atoi(pid)
	return err == nil && (number == os.Getpid() || !errors.Is(syscall.Kill(number, 0), syscall.ESRCH))
}

// removeProject removes the containers and networks of a project, whether they run or not. Missing
// ones are not an error.
func removeProject(ctx context.Context, project string) error {
	remove := func(list, remove []string) error {
		ids, err := docker(ctx, append(list, "--filter", "label="+composeProject+"="+project, "--quiet")...)
		if err != nil || ids == "" {
			return err
		}
		_, err = docker(ctx, append(remove, strings.Fields(ids)...)...)
		return err
	}
	return errors.Join(
		remove([]string{"ps", "--all"}, []string{"rm", "--force", "--volumes"}),
		remove([]string{"network", "ls"}, []string{"network", "rm"}))
}
