// Package guest runs a command of starling-bench in the VM of transport/rdma/guest, an emulated
// machine with two Soft-RoCE devices.
//
//	Run ─ build with RDMA ─► rdma-guest ─ boots QEMU ─► starling-bench COMMAND ─ --json ─► result
package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/network"
	"github.com/starling-kv/starling/e2e/runner"
)

// Devices are the two ends of the cable in the VM.
const Devices = "rxe0,rxe1"

// Target selects where a benchmark with RDMA measurements runs.
type Target struct {
	// Devices are the RDMA devices of the two sides, by name or address, as "D" (both) or "D,D";
	// "": RDMA is not measured.
	Devices string
	Guest   bool // run the whole benchmark in the VM
}

// Flags adds --devices and --guest. program is the value of a flag that --guest excludes, because
// the VM has its own build of that program.
func (t *Target) Flags(f *harness.Flags, program *string) {
	f.StringVar(&t.Devices, "devices", "", "RDMA devices of the two sides, by name or address: one for both, or two (mlx5_0,mlx5_1); needs a build with RDMA (-tags rdma)")
	f.BoolVar(&t.Guest, "guest", false, "run in a QEMU VM with Soft-RoCE devices, with programs built for it (docs/how-to/rdma.md)")
	f.Also(func() error {
		if t.Guest && (t.Devices != "" || *program != "") {
			return errors.New("--guest has devices and programs of its own: leave out --devices and the flag of a program")
		}
		names := strings.Split(t.Devices, ",")
		if t.Devices != "" && (len(names) > 2 || slices.Contains(names, "")) {
			return fmt.Errorf("--devices is %q, it must name one device, or two separated by a comma", t.Devices)
		}
		return nil
	})
}

// Add returns a command with the flags that select t.
func (t Target) Add(command string) string {
	if t.Devices != "" {
		command += " --devices " + t.Devices
	}
	if t.Guest {
		command += " --guest"
	}
	return command
}

// Starlingd returns the path of starlingd: given, or a build, with RDMA in dir if there are
// devices.
func (t Target) Starlingd(ctx context.Context, given, dir string, progress *harness.Progress) (string, error) {
	if given != "" || t.Devices == "" {
		return network.Starlingd(ctx, given, progress)
	}
	root, err := runner.Root(ctx)
	if err != nil {
		return "", err
	}
	progress.Begin("build", "programs", 1)
	progress.Working("starlingd")
	program := filepath.Join(dir, "starlingd")
	return program, build(ctx, root, "./cmd/starlingd", program)
}

// Run is a command to run in the VM.
type Run struct {
	// Args are the arguments of starling-bench, which runs in /root. JSON adds --json.
	Args []string
	// Programs are folders of the main module, such as ./cmd/starlingd. Their programs are built
	// with RDMA and copied to /root.
	Programs  []string
	Files     []string      // further files for /root
	MemoryMiB int           // memory of the VM, which also holds its files
	Limit     time.Duration // time limit for boot and command
}

func scriptIn(root string) string {
	return filepath.Join(root, "transport", "rdma", "guest", "rdma-guest")
}

// Prepare installs and downloads what the VM needs, including libibverbs-dev, unless it is there.
func Prepare(ctx context.Context) error {
	root, err := runner.Root(ctx)
	if err != nil {
		return err
	}
	if err := command(ctx, scriptIn(root), "--prepare"); err != nil {
		return fmt.Errorf("preparing the VM: %w", err)
	}
	return nil
}

// JSON runs the command and decodes its result. Builds are written to dir.
func (r Run) JSON(ctx context.Context, dir string, progress *harness.Progress, result any) error {
	root, err := runner.Root(ctx)
	if err != nil {
		return err
	}
	progress.Begin("guest", "steps", 3+len(r.Programs))
	progress.Working("preparing")
	if err := Prepare(ctx); err != nil {
		return err
	}
	progress.Add(1)
	library, err := verbsLibrary(ctx)
	if err != nil {
		return err
	}
	saved := filepath.Join(dir, "result.json")
	const inside = "/root/result.json"
	args := []string{
		"--timeout", strconv.Itoa(int(r.Limit.Seconds())), "--mem", strconv.Itoa(r.MemoryMiB), "--get", inside + ":" + saved, "--file", library,
	}
	for _, f := range r.Files {
		args = append(args, "--file", f)
	}
	for _, p := range append([]string{"."}, r.Programs...) {
		folder, name := root, filepath.Base(p)
		if p == "." {
			folder, name = filepath.Join(root, "bench"), "starling-bench"
		}
		progress.Working(name)
		program := filepath.Join(dir, name)
		if err := build(ctx, folder, p, program); err != nil {
			return err
		}
		progress.Add(1)
		args = append(args, "--file", program)
	}
	progress.Working("running")
	args = append(append(args, "--", "./starling-bench"), r.Args...)
	if err := command(ctx, scriptIn(root), append(args, "--json", inside)...); err != nil {
		return fmt.Errorf("in the VM: %w", err)
	}
	progress.Add(1)
	text, err := os.ReadFile(saved)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, result); err != nil {
		return fmt.Errorf("decoding the VM's result: %w", err)
	}
	return nil
}

// build builds a program with RDMA, which needs cgo.
func build(ctx context.Context, folder, pkg, out string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-tags", "rdma", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", out, pkg)
	cmd.Dir, cmd.Env = folder, append(os.Environ(), "CGO_ENABLED=1")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build -tags rdma %s: %w\n%s", pkg, err, text)
	}
	return nil
}

// verbsLibrary returns the path of libibverbs, which programs open at run time. The VM gets by
// itself only the libraries that programs are linked with.
func verbsLibrary(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "ldconfig", "-p").Output()
	if err != nil {
		return "", fmt.Errorf("ldconfig -p: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		if name, path, found := strings.Cut(strings.TrimSpace(line), " => "); found && strings.HasPrefix(name, "libibverbs.so.1 ") {
			return path, nil
		}
	}
	return "", errors.New("libibverbs.so.1 is not installed (Debian: libibverbs1)")
}

// lastLines is the number of lines of a failed command's output in its error.
const lastLines = 20

// command runs the guest's script.
func command(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	// An interrupt lets the script stop QEMU.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 20 * time.Second
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return fmt.Errorf("%s: %w:\n%s", filepath.Base(name), err, strings.Join(lines[max(0, len(lines)-lastLines):], "\n"))
}
