package papersbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/starling-kv/starling/bench/guest"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/transportbench"
)

// Options configure a run.
type Options struct {
	guest.Target          // of the figures of RDMA
	Only         []string // ids of figures; empty: all
	Quick, Full  bool
	Out          string
	Force        bool
}

// Flags adds the flags of papers.
func (o *Options) Flags(f *harness.Flags) {
	f.BoolVar(&o.Quick, "quick", false, "small states, for ten minutes on two cores (default: the sizes of the pictures in the documentation, for about an hour)")
	f.BoolVar(&o.Full, "full", false, "the papers' sizes where they fit into this machine: overnight")
	f.Names(&o.Only, "only", nil, ids(), "figures to run (default: all), of "+fmt.Sprint(len(figures))+": see docs/explanation/papers.md")
	f.StringVar(&o.Out, "out", "../build/papers", "folder for the reports, the pictures and index.html; figures that it has from the same commit and options are not run again")
	f.BoolVar(&o.Force, "force", false, "run figures again that the folder has")
	o.Target.Flags(f, new(string))
	f.Also(func() error {
		switch {
		case o.Quick && o.Full:
			return errors.New("--quick and --full exclude each other")
		case o.Out == "":
			return errors.New("--out is empty, it must name a folder")
		}
		return nil
	})
}

// ids returns the ids of all figures.
func ids() (all []string) {
	for _, f := range figures {
		all = append(all, f.id)
	}
	return all
}

// Result is the outcome of a run: the reports of all figures in the folder, old and new.
type Result struct {
	Out     string    `json:"out"`
	Reports []*report `json:"reports"`
	ran     int
}

// Run measures the figures one after another. Each is written as soon as it is measured, so that an
// interrupted run keeps what it has. A figure that fails does not end the run.
func Run(ctx context.Context, o Options, progress *harness.Progress) (*Result, error) {
	if o.Devices != "" {
		if _, _, err := transportbench.Addresses(o.Devices); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(o.Out, 0o755); err != nil { //nolint:gosec // results are world-readable
		return nil, fmt.Errorf("--out: %w", err)
	}
	var chosen []*figure
	for _, f := range figures {
		if f.run != nil && (len(o.Only) == 0 || slices.Contains(o.Only, f.id)) {
			chosen = append(chosen, f)
		}
	}
	machine, failed, ran := harness.ThisMachine(), []error(nil), 0
	for i, f := range chosen {
		say := func(format string, args ...any) {
			progress.Say("figure %d of %d, %s: %s", i+1, len(chosen), f.id, fmt.Sprintf(format, args...))
		}
		commands := f.commands(o)
		old, err := load(o.Out, f.id)
		if err != nil {
			return nil, err
		}
		if !o.Force && old.fits(commands, machine.Commit) {
			say("kept from %s", old.Machine.Date.Format(time.DateTime))
			continue
		}
		say("%s", f.title)
		r, err := f.report(ctx, commands, machine.Now(), progress)
		if ctx.Err() != nil {
			break
		}
		if err == nil {
			err = r.save(o.Out)
		}
		if err != nil {
			say("failed: %v", err)
			failed = append(failed, fmt.Errorf("%s: %w", f.id, err))
			continue
		}
		ran++
		say("done in %.0f s", r.Seconds)
	}
	result, err := gather(o.Out)
	if err != nil {
		return nil, err
	}
	result.ran = ran
	if ctx.Err() != nil {
		return nil, fmt.Errorf("interrupted: %s of this run %s in %s, the same command continues", harness.Count(ran, "figure"), isAre(ran), o.Out)
	}
	return result, errors.Join(failed...)
}

func isAre(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// report runs a figure.
func (f *figure) report(ctx context.Context, commands []string, machine harness.Machine, progress *harness.Progress) (*report, error) {
	r := &report{ID: f.id, Commands: commands, Machine: machine}
	from := time.Now()
	o, err := f.run(ctx, commands, progress)
	if err != nil {
		return nil, err
	}
	r.Seconds, r.LoadEnd, r.outcome = time.Since(from).Seconds(), harness.LoadAverage(), *o
	return r, nil
}

// gather reads all reports of a folder, draws them again, and writes the folder's page.
func gather(dir string) (*Result, error) {
	result := &Result{Out: dir}
	found := map[string]*report{}
	for _, f := range figures {
		r, err := load(dir, f.id)
		if err != nil {
			return nil, err
		}
		if r != nil {
			if err := r.draw(dir); err != nil {
				return nil, err
			}
			found[f.id] = r
			result.Reports = append(result.Reports, r)
		}
	}
	b, err := page(found)
	if err != nil {
		return nil, err
	}
	return result, write(filepath.Join(dir, "index.html"), b)
}

// Print writes the papers' numbers and ours.
func (r *Result) Print(out io.Writer) {
	for _, rep := range r.Reports {
		fmt.Fprintln(out, rep.ID)
		for _, row := range rep.Rows {
			paper := ""
			if row.Paper != "" {
				paper = " (paper: " + row.Paper + ")"
			}
			fmt.Fprintf(out, "  %s: %s%s\n", row.What, row.Ours, paper)
		}
	}
	without := 0
	for _, f := range figures {
		if f.run == nil {
			without++
		}
	}
	fmt.Fprintf(out, "\n%s measured now. Pictures, conditions, and the reasons of %s that cannot be repeated here: %s\n",
		harness.Count(r.ran, "figure"), harness.Count(without, "figure"), filepath.Join(r.Out, "index.html"))
}
