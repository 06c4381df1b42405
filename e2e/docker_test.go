package e2e_test

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/e2e/relay/link"
	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/internal/ports"
)

// dockerHere skips the test if there is no Docker. It returns a context with a time limit, and the
// root of the module.
func dockerHere(t *testing.T, limit time.Duration) (ctx context.Context, root string) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), limit, fmt.Errorf("not done within %v", limit))
	t.Cleanup(cancel)
	if out, err := exec.CommandContext(ctx, "docker", "version").CombinedOutput(); err != nil {
		t.Skipf("NOT RUN: containers (no Docker here: %v %s)", err, out)
	}
	root, err := runner.Root(ctx)
	require.NoError(t, err)
	return ctx, root
}

// tool runs a program in a folder, with variables, and returns its output.
func tool(t *testing.T, ctx context.Context, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s %v: %s%s", name, args, out, stderr.String())
	return strings.TrimSpace(string(out))
}

// buildImage builds the image of programs as networks/build-image.sh does, and removes it at the
// end of the test.
func buildImage(t *testing.T, ctx context.Context, root, name string, programs ...string) (tag string) {
	t.Helper()
	tag = fmt.Sprintf("starling-test-%s:%d", name, os.Getpid())
	tool(t, ctx, root, []string{"PREBUILT=" + strings.Join(programs, " ")}, "networks/build-image.sh", tag)
	t.Cleanup(func() { tool(t, context.Background(), root, nil, "docker", "image", "rm", "--force", tag) })
	return tag
}

// The image holds only the program, and runs it as a user without privileges, on a file system
// where only the home and /tmp are writable. Docker's health check sees whether the node is
// healthy.
func TestImage(t *testing.T) {
	ctx, root := dockerHere(t, 4*time.Minute)
	image := buildImage(t, ctx, root, "image", starlingd)
	name := fmt.Sprintf("starling-test-%d", os.Getpid())
	docker := func(args ...string) string { return tool(t, ctx, root, nil, "docker", args...) }
	t.Cleanup(func() { tool(t, context.Background(), root, nil, "docker", "rm", "--force", "--volumes", name) })

	docker("create", "--name", name, image)
	modes, owners := exported(t, ctx, name)
	require.Equal(t, os.ModeDir|os.ModeSticky|0o777, modes["tmp/"])
	require.Equal(t, 65532, owners["tmp/"])
	require.Equal(t, 65532, owners["home/"])
	require.Contains(t, modes, "bin/starlingd")
	for path := range modes { // Docker's own files in a container are empty
		require.Regexp(t, `^(bin/(starlingd)?|tmp/|home/|(dev|etc|proc|sys)/.*|\.dockerenv)$`, path)
	}
	docker("rm", "--volumes", name)

	home := filepath.Join(t.TempDir(), "home")
	require.NoError(t, os.Mkdir(home, 0o755))
	user := fmt.Sprintf("%d:%d", os.Geteuid(), os.Getegid())
	if os.Geteuid() == 0 {
		user = "65532:65532" // the image's own
		require.NoError(t, os.Chown(home, 65532, 65532))
	}
	safe := []string{"--user", user, "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--volume", home + ":/home"}
	docker(append(append([]string{"run", "--rm"}, safe...), image, "init", "image", "--chain-id", "image", "--open")...)
	docker(append(append([]string{"run", "--detach", "--name", name, "--health-interval", "1s"}, safe...), image)...)
	require.NoError(t, runner.Poll(ctx, "Docker to report it healthy", func() bool {
		return docker("inspect", "--format", "{{.State.Health.Status}}", name) == "healthy"
	}), "%s", docker("logs", "--tail", "20", name))
	docker("stop", "--time", "30", name)
	require.Equal(t, "0", docker("inspect", "--format", "{{.State.ExitCode}}", name), "it ends cleanly")
}

// exported returns the modes and owners of a container's files.
func exported(t *testing.T, ctx context.Context, name string) (modes map[string]os.FileMode, owners map[string]int) {
	t.Helper()
	cmd := exec.CommandContext(ctx, "docker", "export", name)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	modes, owners = map[string]os.FileMode{}, map[string]int{}
	for archive := tar.NewReader(out); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		modes[header.Name], owners[header.Name] = header.FileInfo().Mode(), header.Uid
	}
	_, _ = io.Copy(io.Discard, out) // the end of the archive is padded
	require.NoError(t, cmd.Wait())
	return modes, owners
}

var (
	publishedPattern = regexp.MustCompile(`127\.0\.0\.1:(\d+):`)
	fieldPattern     = regexp.MustCompile(`(TRUST_HEIGHT=\d+) (TRUST_HASH=[0-9A-F]+)`)
)

// The ready-made networks, from their own compose files except for the ports of this machine, the
// network's addresses, and the restart policy: they make blocks, a node joins them, and they end.
func TestReadyNetworks(t *testing.T) {
	ctx, root := dockerHere(t, 6*time.Minute)
	image := buildImage(t, ctx, root, "networks", starlingd, byzantine, relay)
	for i, network := range []struct {
		name  string
		homes []string
	}{{"local", nil}, {"wan", []string{"--relay"}}} {
		t.Run(network.name, func(t *testing.T) {
			dir := t.TempDir()
			published := copyCompose(t, root, network.name, dir)
			args := append([]string{"run", "./networks/homes", "--dir", dir, "--starlingd", starlingd, "--chain-id", network.name}, network.homes...)
			tool(t, ctx, root, nil, "go", args...)
			env := []string{"STARLING_IMAGE=" + image, fmt.Sprintf("STARLING_NET=172.29.%d", 100+(os.Getpid()+i)%100)}
			compose := func(ctx context.Context, env []string, args ...string) {
				words := []string{"docker-compose"}
				if exec.CommandContext(ctx, "docker", "compose", "version").Run() == nil {
					words = []string{"docker", "compose"}
				}
				words = append(words, "--project-name", fmt.Sprintf("starling-test-%s-%d", network.name, os.Getpid()), "--profile", "join")
				tool(t, ctx, dir, env, words[0], append(words[1:], args...)...)
			}
			t.Cleanup(func() {
				if t.Failed() {
					out, _ := exec.Command("docker", "ps", "--all").CombinedOutput()
					t.Logf("%s", out)
				}
				compose(context.Background(), env, "down", "--volumes", "--timeout", "30")
			})
			services := []string{"validator-0", "validator-1", "validator-2", "validator-3", "liar"}
			compose(ctx, env, append([]string{"up", "--detach"}, services...)...)
			if control, is := published["26650"]; is {
				text, err := os.ReadFile(filepath.Join(dir, "homes", "delays.json"))
				require.NoError(t, err)
				var delays []link.Setting
				require.NoError(t, json.Unmarshal(text, &delays))
				require.NoError(t, runner.Poll(ctx, "the relay", func() bool { return link.Control{URL: control}.Healthy(ctx) == nil }))
				require.NoError(t, link.Control{URL: control}.Set(ctx, delays...))
			}
			trusted := fieldPattern.FindStringSubmatch(
				tool(t, ctx, root, nil, "networks/trusted-header.sh", published["26657"]))
			require.Len(t, trusted, 3)
			compose(ctx, append(env, trusted[1:]...), "up", "--detach", "joiner")

			// A value that is written on one node is read on the one that joined.
			writer, err := client.Dial(ctx, []string{published["26657"]}, client.WithChainID(network.name))
			require.NoError(t, err)
			written, err := writer.PutText(ctx, []byte("fruit"), []byte("apple"))
			require.NoError(t, err)
			require.NoError(t, runner.Poll(ctx, "the joiner to have the value", func() bool {
				reader, err := client.Dial(ctx, []string{published["27157"]}, client.WithChainID(network.name))
				if err != nil {
					return false
				}
				got, err := reader.Get(ctx, []byte("fruit"))
				return err == nil && string(got.Value) == "apple"
			}))
			status := tool(t, ctx, root, nil, "curl", "-sf", published["27157"]+"/status")
			var answer struct {
				Result struct {
					Sync struct {
						Earliest string `json:"earliest_block_height"`
					} `json:"sync_info"`
				}
			}
			require.NoError(t, json.Unmarshal([]byte(status), &answer))
			require.NotEqual(t, "1", answer.Result.Sync.Earliest, "it joined by the state, not by all blocks")
			t.Logf("written in block %d; the joiner's first block is %s", written.Height, answer.Result.Sync.Earliest)
		})
	}
}

// copyCompose copies the compose file of a network, with free ports in place of those that it
// publishes, and returns their URLs by the original ports.
func copyCompose(t *testing.T, root, network, dir string) (published map[string]string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "networks", network, "docker-compose.yml"))
	require.NoError(t, err)
	found := publishedPattern.FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, found)
	held, err := ports.Hold(len(found))
	require.NoError(t, err)
	defer held.Release()
	published = map[string]string{}
	for i, match := range found {
		published[match[1]] = "http://" + held.Address(i)
	}
	copied := publishedPattern.ReplaceAllStringFunc(string(text), func(match string) string {
		return strings.TrimPrefix(published[publishedPattern.FindStringSubmatch(match)[1]], "http://") + ":"
	})
	// If this run is killed, a later run of the networks in containers removes these by the owner's
	// process id.
	copied = strings.ReplaceAll(copied, "restart: unless-stopped",
		fmt.Sprintf("restart: \"no\"\n  labels: {io.starling-kv.e2e.owner: \"%d\"}", os.Getpid()))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "docker-compose.yml"), []byte(copied), 0o644))
	return published
}
