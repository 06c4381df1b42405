// Package comparebench compares the CPU time of two programs that do the same work, such as
// starling-bench built from two checkouts.
//
//	pair 1: before args… , after args…    pair 2: after args… , before args…    …
//
// It measures whole processes from outside: user and system time of a program and of all its
// descendants that it waited for, as the kernel counts them. The ratio is taken pair by pair, so
// that drift of the machine's speed biases neither side.
package comparebench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/starling-kv/starling/bench/harness"
)

// Options are what a run is asked for.
type Options struct {
	Before, After string   // paths of the programs
	Args          []string // of both
	Pairs         int
	WarmUp        int // pairs before those that count
}

// Check returns an error that names the flag that is out of range.
func (o Options) Check() error {
	if o.Pairs < 1 || o.Pairs > 1000 {
		return fmt.Errorf("--pairs is %d, it must be from 1 to 1000", o.Pairs)
	}
	if o.WarmUp < 0 || o.WarmUp > 100 {
		return fmt.Errorf("--warm-up is %d, it must be from 0 to 100", o.WarmUp)
	}
	return nil
}

// Usage is what one run of a program used, in seconds.
type Usage struct {
	User   float64 `json:"user_s"`
	System float64 `json:"system_s"`
	Wall   float64 `json:"wall_s"`
}

// CPU is user and system time together.
func (u Usage) CPU() float64 { return u.User + u.System }

// Result is the outcome of a run.
type Result struct {
	Before  Side             `json:"before"`
	After   Side             `json:"after"`
	CPU     harness.Interval `json:"cpu"`  // CPU time of after over before's, by pairs
	Wall    harness.Interval `json:"wall"` // the same of wall time
	Args    []string         `json:"args"`
	Machine harness.Machine  `json:"machine"`
}

// Side are the runs of one program, by pairs.
type Side struct {
	Program string  `json:"program"`
	Runs    []Usage `json:"runs"`
}

// Run measures. It reports its progress.
func Run(ctx context.Context, o Options, progress *harness.Progress) (*Result, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	defer progress.Run()()
	r := &Result{Before: Side{Program: o.Before}, After: Side{Program: o.After}, Args: o.Args, Machine: harness.ThisMachine()}
	sides := []*Side{&r.Before, &r.After}
	progress.Begin("runs", "runs", 2*(o.WarmUp+o.Pairs))
	err := harness.InTurns(o.WarmUp+o.Pairs, sides, func(round int, s *Side) error {
		progress.Working(s.Program)
		defer progress.Add(1)
		u, err := execute(ctx, s.Program, o.Args)
		if ctx.Err() != nil {
			return harness.ErrInterrupted
		}
		if err == nil && round >= o.WarmUp {
			s.Runs = append(s.Runs, u)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	r.CPU, r.Wall = r.ratios(Usage.CPU), r.ratios(func(u Usage) float64 { return u.Wall })
	return r, nil
}

func (r *Result) ratios(of func(Usage) float64) harness.Interval {
	var ratios []float64
	for i, before := range r.Before.Runs {
		ratios = append(ratios, harness.Ratio(of(r.After.Runs[i]), of(before)))
	}
	return harness.MedianInterval(ratios)
}

// execute runs a program to its end. What it prints is dropped, unless it fails.
func execute(ctx context.Context, program string, args []string) (Usage, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	// it removes what it has made
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	began := time.Now()
	if err := cmd.Run(); err != nil {
		return Usage{}, fmt.Errorf("%q: %w\n%s", append([]string{program}, args...), err, strings.TrimSpace(stderr.String()))
	}
	return Usage{
		User: cmd.ProcessState.UserTime().Seconds(), System: cmd.ProcessState.SystemTime().Seconds(), Wall: time.Since(began).Seconds(),
	}, nil
}

// Print writes the table, and how to read it.
func (r *Result) Print(out io.Writer) {
	columns := []func(Usage) float64{
		Usage.CPU, func(u Usage) float64 { return u.User }, func(u Usage) float64 { return u.System }, func(u Usage) float64 { return u.Wall },
	}
	cells := [][]string{{"", "CPU, s", "user", "system", "wall, s"}}
	for _, side := range []struct {
		name string
		Side
	}{{"before", r.Before}, {"after", r.After}} {
		line := []string{side.name}
		for _, of := range columns {
			var figures []float64
			for _, u := range side.Runs {
				figures = append(figures, of(u))
			}
			line = append(line, harness.MedianInterval(figures).Text("%.2f"))
		}
		cells = append(cells, line)
	}
	line := []string{"after/before"}
	for _, of := range columns {
		line = append(line, r.ratios(of).Text("%.3f"))
	}
	cells = append(cells, line)
	harness.PrintAligned(out, cells)
	fmt.Fprintf(out, `
medians of %s with intervals at %.1f %%; after/before: of the ratios of the pairs
before   %q
after    %q
args     %q
CPU      user and system time of the whole process tree
`, harness.Count(len(r.Before.Runs), "pair"), 100*r.CPU.Confidence, r.Before.Program, r.After.Program, r.Args)
}
