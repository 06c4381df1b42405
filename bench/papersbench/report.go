package papersbench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/e2e/runner"
)

// report is the file of a figure that was measured.
type report struct {
	ID       string          `json:"id"`
	Commands []string        `json:"commands"`
	Commit   string          `json:"commit"` // "": unknown, or changed code
	Started  time.Time       `json:"started"`
	Seconds  float64         `json:"seconds"`
	Machine  harness.Machine `json:"machine"`
	CPU      string          `json:"cpu"`         // model name
	Load     float64         `json:"load"`        // load average before the run
	LoadEnd  float64         `json:"load_at_end"` // and at its end, with the run's own load
	outcome
}

// label says where and when a report was measured.
func (r *report) label() string {
	commit := "changed code"
	if r.Commit != "" {
		commit = "commit " + r.Commit[:min(len(r.Commit), 9)]
	}
	return fmt.Sprintf("measured %s, %s, %d × %s, load %.1f before the run", r.Started.UTC().Format(time.DateOnly), commit, r.Machine.CPUs, r.CPU, r.Load)
}

// name returns the name of a figure's files, without an extension.
func name(id string) string { return strings.ReplaceAll(id, "/", "-") }

func pictureName(id string, c chart) string {
	if c.Name != "" {
		return name(id) + "-" + c.Name + ".svg"
	}
	return name(id) + ".svg"
}

// load returns the report of a figure; nil if there is none.
func load(dir, id string) (*report, error) {
	path := filepath.Join(dir, name(id)+".json")
	b, err := os.ReadFile(path) //nolint:gosec // a file of --out
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r := &report{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("%s: %w (remove the file to measure the figure again)", path, err)
	}
	return r, nil
}

// fits reports whether a report stands for a run of the same commands at the same commit.
func (r *report) fits(commands []string, commit string) bool {
	return r != nil && commit != "" && r.Commit == commit && slices.Equal(r.Commands, commands)
}

// draw writes the pictures of the report.
func (r *report) draw(dir string) error {
	for _, c := range r.Charts {
		svg, err := picture(c, r.label())
		if err != nil {
			return err
		}
		if err := write(filepath.Join(dir, pictureName(r.ID, c)), svg); err != nil {
			return err
		}
	}
	return nil
}

// save writes the report and its pictures.
func (r *report) save(dir string) error {
	if err := r.draw(dir); err != nil {
		return err
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return write(filepath.Join(dir, name(r.ID)+".json"), append(b, '\n'))
}

// write replaces a file, never by a part of the new one.
func write(path string, b []byte) error {
	if err := os.WriteFile(path+".new", b, 0o644); err != nil { //nolint:gosec // results are world-readable
		return err
	}
	return os.Rename(path+".new", path)
}

// commit returns the commit of the repository's code; "" if it has changes or is not in git.
func commit(ctx context.Context) string {
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
	return harness.ThisMachine().Arch
}
