package pictures

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/starling-kv/starling/bench/harness"
)

// Options configure a run of draw.
type Options struct {
	Runs, Out string // folders
}

// Flags adds the flags of draw.
func (o *Options) Flags(f *harness.Flags) {
	f.StringVar(&o.Runs, "runs", "../docs/runs", "folder with the output of runs")
	f.StringVar(&o.Out, "out", "../docs", "folder for the pictures")
}

// sources are the files that the pictures are drawn from.
var sources = []string{"join.txt", "latency.txt", "tree.txt"}

// pictures maps the file of each picture to what draws it.
var pictures = map[string]func(runs map[string]string) ([]byte, error){
	"benchmarks.svg": drawBenchmarks, "put-timeline.svg": drawTimeline,
}

// draw returns the pictures by file.
func draw(folder string) (map[string][]byte, error) {
	runs, drawn := map[string]string{}, map[string][]byte{}
	for _, name := range sources {
		b, err := os.ReadFile(filepath.Join(folder, name)) //nolint:gosec // a file of --runs
		if err != nil {
			return nil, err
		}
		runs[name] = string(b)
	}
	for name, of := range pictures {
		svg, err := of(runs)
		if err != nil {
			return nil, err
		}
		drawn[name] = svg
	}
	return drawn, nil
}

// Run draws the pictures, and returns the names of their files.
func Run(o Options) (files []string, err error) {
	drawn, err := draw(o.Runs)
	if err != nil {
		return nil, err
	}
	for name, svg := range drawn {
		file := filepath.Join(o.Out, name)
		if err := os.WriteFile(file, svg, 0o644); err != nil { //nolint:gosec // documents are world-readable
			return nil, fmt.Errorf("--out: %w", err)
		}
		files = append(files, file)
	}
	slices.Sort(files)
	return files, nil
}
