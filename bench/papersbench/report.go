package papersbench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/starling-kv/starling/bench/harness"
)

// report is the file of a figure that was measured.
type report struct {
	ID       string          `json:"id"`
	Commands []string        `json:"commands"`
	Seconds  float64         `json:"seconds"`
	Machine  harness.Machine `json:"machine"`
	LoadEnd  float64         `json:"load_at_end"` // load average, with the run's own load
	outcome
}

// label says where and when a report was measured.
func (r *report) label() string {
	commit, m := "changed code", r.Machine
	if m.Commit != "" {
		commit = "commit " + m.Commit[:min(len(m.Commit), 9)]
	}
	return fmt.Sprintf("measured %s, %s, %d × %s, load %.1f before the run", m.Date.Format(time.DateOnly), commit, m.CPUs, m.CPU, m.Load)
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
	return r != nil && commit != "" && r.Machine.Commit == commit && slices.Equal(r.Commands, commands)
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
