package papersbench

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/starling-kv/starling/bench/harness"
)

// figure is a figure, a table or a number of a paper, or one of ours that the papers have no
// counterpart for.
type figure struct {
	id    string // paper/name
	title string
	// paper is what the paper measured, with its numbers.
	paper string
	// how says how ours is measured. quick, usual and full are the commands of this program that
	// measure it, or options of the figure's own run, at three sizes. quick and full are those of
	// usual where they are nil.
	how                string
	quick, usual, full []string
	// rdma: the commands also measure RDMA on the devices, or in the VM, that the run names.
	rdma bool
	// differs lists what differs from the paper's set-up.
	differs []string
	// reason says why the figure cannot be repeated here, and needs what it would take. Such a
	// figure has no run.
	reason, needs string

	run func(ctx context.Context, commands []string, progress *harness.Progress) (*outcome, error)
}

// commands returns the commands of a run.
func (f *figure) commands(o Options) []string {
	commands := f.usual
	switch {
	case o.Quick && f.quick != nil:
		commands = f.quick
	case o.Full && f.full != nil:
		commands = f.full
	}
	if !f.rdma {
		return commands
	}
	commands = slices.Clone(commands)
	for i, c := range commands {
		if !o.Guest || !strings.Contains(c, "--profile") { // profiles in the VM are meaningless
			commands[i] = o.Add(c)
		}
	}
	return commands
}

// outcome is what a figure's run measured.
type outcome struct {
	Rows   []row           `json:"rows"`
	Charts []chart         `json:"charts,omitempty"`
	Raw    json.RawMessage `json:"raw,omitempty"` // the results of the benchmarks that ran
}

// row has one number of the paper, if there is one, and ours.
type row struct {
	What  string `json:"what"`
	Paper string `json:"paper,omitempty"`
	Ours  string `json:"ours"`
}

func (o *outcome) add(what, paper, format string, values ...any) {
	o.Rows = append(o.Rows, row{what, paper, fmt.Sprintf(format, values...)})
}

// setRaw keeps the results of other benchmarks.
func (o *outcome) setRaw(results any) (err error) {
	o.Raw, err = json.Marshal(results)
	return err
}

// chart is a picture. Points are joined by a line in the order of their x.
type chart struct {
	Name  string `json:"name,omitempty"` // distinguishes the charts of a figure
	Title string `json:"title"`
	X     string `json:"x"`
	Y     string `json:"y"`
	// Names, if there are any, are those of bars: X counts them from 0.
	Names []string `json:"names,omitempty"`
	LogX  bool     `json:"log_x,omitempty"`
	LogY  bool     `json:"log_y,omitempty"`
	Lines []line   `json:"lines"`
}

type line struct {
	Name   string  `json:"name"`
	Paper  bool    `json:"paper,omitempty"` // the paper's numbers
	Points []point `json:"points"`
}

// point has the least and the greatest value of a sample, or zeros.
type point struct {
	X    float64 `json:"x"`
	Y    float64 `json:"y"`
	Low  float64 `json:"low,omitempty"`
	High float64 `json:"high,omitempty"`
}

// at returns a point. sample, if it has several values, becomes its whiskers.
func at(x, y float64, sample ...float64) point {
	p := point{X: x, Y: y}
	if len(sample) > 1 {
		p.Low, p.High = slices.Min(sample), slices.Max(sample)
	}
	return p
}

// parse returns the options of a benchmark as its command sets them.
func parse[O any, P interface {
	*O
	Flags(flags *harness.Flags)
}](command string) (o O, err error) {
	words := strings.Fields(command)
	flags := &harness.Flags{FlagSet: pflag.NewFlagSet(words[0], pflag.ContinueOnError)}
	P(&o).Flags(flags)
	if err := flags.Parse(words[1:]); err != nil {
		return o, fmt.Errorf("%s: %w", command, err)
	}
	if err := flags.Check(); err != nil {
		return o, fmt.Errorf("%s: %w", command, err)
	}
	return o, nil
}

// measure runs a benchmark once for each command.
func measure[O, R any, P interface {
	*O
	Flags(flags *harness.Flags)
}](ctx context.Context, commands []string, progress *harness.Progress, run func(context.Context, O, *harness.Progress) (*R, error)) (all []*R, err error) {
	for _, c := range commands {
		o, err := parse[O, P](c)
		if err != nil {
			return nil, err
		}
		r, err := run(ctx, o, progress)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c, err)
		}
		all = append(all, r)
	}
	return all, nil
}

// drawn returns the run function of a figure that measures with another benchmark and draws its
// results.
func drawn[O, R any, P interface {
	*O
	Flags(flags *harness.Flags)
}](run func(context.Context, O, *harness.Progress) (*R, error), draw func(results []*R) (*outcome, error)) func(context.Context, []string, *harness.Progress) (*outcome, error) {
	return func(ctx context.Context, commands []string, progress *harness.Progress) (*outcome, error) {
		results, err := measure[O, R, P](ctx, commands, progress, run)
		if err != nil {
			return nil, err
		}
		out, err := draw(results)
		if err != nil {
			return nil, err
		}
		return out, out.setRaw(results)
	}
}
