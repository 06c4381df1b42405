package e2e_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The image with RDMA has the library that the program opens at run time, with its device
// libraries, and runs as a user without privileges. Its `rdma check` names the missing parts of the
// machine, not a missing library.
func TestImageWithRDMA(t *testing.T) {
	// the time of a build with cgo and an empty cache on a busy machine
	ctx, root := dockerHere(t, 15*time.Minute)
	for _, needed := range []string{"gcc", "make", "ldd"} {
		if _, err := exec.LookPath(needed); err != nil {
			t.Skipf("NOT RUN: the image with RDMA (no %s here)", needed)
		}
	}
	if _, err := os.Stat("/usr/include/infiniband/verbs.h"); err != nil {
		t.Skip("NOT RUN: the image with RDMA (no libibverbs-dev here)")
	}
	tag := fmt.Sprintf("starling-test-rdma:%d", os.Getpid())
	docker := func(args ...string) string { return tool(t, ctx, root, nil, "docker", args...) }
	tool(t, ctx, root, []string{"VERSION=v1.2.3-test"}, "networks/build-image.sh", "--rdma", tag)
	t.Cleanup(func() { tool(t, context.Background(), root, nil, "docker", "image", "rm", "--force", tag) })

	name := fmt.Sprintf("starling-test-rdma-%d", os.Getpid())
	docker("create", "--name", name, tag)
	t.Cleanup(func() { tool(t, context.Background(), root, nil, "docker", "rm", "--force", "--volumes", name) })
	modes, owners := exported(t, ctx, name)
	require.Contains(t, modes, "etc/libibverbs.d/rxe.driver")
	require.Equal(t, 65532, owners["home/"])
	for path := range modes { // libraries, at the distribution's paths
		require.Regexp(t, `^(bin/(starlingd-rdma)?|(usr/)?lib(64)?/.*|usr/|tmp/|home/|(dev|etc|proc|sys)/.*|\.dockerenv)$`, path)
	}

	home := filepath.Join(t.TempDir(), "home")
	require.NoError(t, os.Mkdir(home, 0o777))
	require.NoError(t, os.Chmod(home, 0o777)) //nolint:gosec // for the container's user; the umask would restrict it
	run := []string{"run", "--rm", "--user", "65532:65532", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--volume", home + ":/home", tag}
	require.Contains(t, docker(append(run, "version")...), "v1.2.3-test")
	docker(append(run, "init", "image", "--chain-id", "image", "--open", "--home", "/home/node")...)
	// Without a device, the exit status of `rdma check` is 1.
	out, err := exec.CommandContext(ctx, "docker", append(run, "rdma", "check", "--home", "/home/node")...).CombinedOutput()
	if err != nil {
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit, "%s", out)
		require.Equal(t, 1, exit.ExitCode(), "%s", out)
	}
	require.Contains(t, string(out), "built with RDMA")
	require.Regexp(t, "the kernel has no InfiniBand modules|libibverbs and the kernel modules are present", string(out))
}
