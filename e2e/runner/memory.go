package runner

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// MemoryGroup is a control group (cgroups(7)) that limits the memory of the processes in it
// together: what they allocate, their page cache, which the kernel reclaims, and their sockets.
// Swap counts as memory, or there is none, if the kernel accounts it.
type MemoryGroup struct {
	dir    string
	events string // file with the counter oom_kill
}

// Both versions of control groups, where systemd and container engines mount them.
const (
	memoryV1 = "/sys/fs/cgroup/memory"
	memoryV2 = "/sys/fs/cgroup"
)

// NewMemoryGroup makes a group with a limit in bytes. The error matches errors.ErrUnsupported if
// this machine does not let this process do so: that takes root, and Linux with a writable memory
// controller that also limits swap, if there is any. The caller must call Remove.
func NewMemoryGroup(name string, limit int64) (*MemoryGroup, error) {
	type file struct {
		name, content string
		optional      bool // swap is not accounted in every kernel
	}
	most := strconv.FormatInt(limit, 10)
	root, events := memoryV1, "memory.oom_control"
	// memory and swap together, which must not be below the limit of memory
	files := []file{{name: "memory.limit_in_bytes", content: most}, {name: "memory.memsw.limit_in_bytes", content: most, optional: true}}
	if _, err := os.Stat(filepath.Join(memoryV2, "cgroup.controllers")); err == nil {
		root, events = memoryV2, "memory.events"
		files = []file{{name: "memory.max", content: most}, {name: "memory.swap.max", content: "0", optional: true}}
	}
	dir, err := os.MkdirTemp(root, "starling-"+name+"-")
	if err != nil {
		return nil, unsupported(err)
	}
	g := &MemoryGroup{dir: dir, events: filepath.Join(dir, events)}
	for _, f := range files {
		// without O_CREATE: the kernel makes the files
		err := writeFile(filepath.Join(dir, f.name), f.content)
		if f.optional && errors.Is(err, os.ErrNotExist) && !swaps() {
			continue
		}
		if err != nil {
			return nil, errors.Join(unsupported(err), g.Remove())
		}
	}
	return g, nil
}

// unsupported marks errors that say that this process or this kernel cannot limit memory.
func unsupported(err error) error {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return err
}

// swaps reports whether the machine may have swap.
func swaps() bool {
	content, err := os.ReadFile("/proc/swaps")
	return err != nil || bytes.Count(content, []byte("\n")) > 1 // the first line is a heading
}

func writeFile(path, content string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	return errors.Join(err, f.Close())
}

// Kills returns how many processes of the group the kernel has killed because their memory
// reached the limit.
func (g *MemoryGroup) Kills() (int, error) {
	content, err := os.ReadFile(g.events)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(content)) {
		if number, ok := strings.CutPrefix(line, "oom_kill "); ok {
			return strconv.Atoi(strings.TrimSpace(number))
		}
	}
	return 0, fmt.Errorf("%s has no counter oom_kill", g.events)
}

// Remove removes the group, whose processes must have ended.
func (g *MemoryGroup) Remove() error { return os.Remove(g.dir) }

// enter returns a command that starts a program in the group: a shell enters the group and becomes
// the program, which allocates nothing outside.
func (g *MemoryGroup) enter(path string, args []string) (shell string, shellArgs []string) {
	script := `echo $$ > "$0" && exec "$@"`
	return "/bin/sh", append([]string{"-c", script, filepath.Join(g.dir, "cgroup.procs"), path}, args...)
}
