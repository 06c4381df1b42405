package harness

import (
	"bytes"
	"context"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/procfs"

	"github.com/starling-kv/starling/e2e/runner"
)

// Machine describes where and when a result was measured. In a VM, the load, the date and the
// commit are the host's (see OnHost).
type Machine struct {
	OS     string    `json:"os"`
	Arch   string    `json:"arch"`
	CPUs   int       `json:"cpus"`
	Go     string    `json:"go"`
	CPU    string    `json:"cpu"`    // model name
	Load   float64   `json:"load"`   // load average before the run
	Date   time.Time `json:"date"`   // start of the run, UTC, in whole seconds
	Commit string    `json:"commit"` // "": unknown, or changed code
}

// ThisMachine describes this machine as of its first call, which is before the run: a run raises
// the load.
var ThisMachine = sync.OnceValue(func() Machine {
	m := Machine{OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.GOMAXPROCS(0), Go: runtime.Version(), CPU: cpuModel(), Commit: commit()}
	return m.Now()
})

// Now returns m with the present load and date.
func (m Machine) Now() Machine {
	m.Load, m.Date = LoadAverage(), time.Now().UTC().Truncate(time.Second)
	return m
}

// OnHost returns the description of a VM of this machine, with the fields that only the host knows.
func (m Machine) OnHost() Machine {
	host := ThisMachine()
	m.Load, m.Date, m.Commit = host.Load, host.Date, host.Commit
	return m
}

// commit returns the commit of the repository's code; "" if it has changes or is not in git.
func commit() string {
	ctx := context.Background() // git answers at once
	root, err := runner.Root(ctx)
	if err != nil {
		return ""
	}
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "git", append([]string{"-C", root}, args...)...).Output() //nolint:gosec // fixed arguments
		return string(bytes.TrimSpace(out)), err
	}
	changed, err := git("status", "--porcelain", "--", "*.go", "*.s", "*go.mod", "*go.sum")
	if err != nil || changed != "" {
		return ""
	}
	head, err := git("rev-parse", "HEAD")
	if err != nil {
		return ""
	}
	return head
}

// cpuModel returns the name of the processor, or its architecture if that is unknown.
func cpuModel() string {
	proc, err := procfs.NewDefaultFS()
	if err == nil {
		if cpus, err := proc.CPUInfo(); err == nil && len(cpus) > 0 && cpus[0].ModelName != "" {
			return strings.Join(strings.Fields(cpus[0].ModelName), " ")
		}
	}
	return runtime.GOARCH
}
