package harness

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Flags are the flags of one benchmark. Each flag has a range, and Check names the first flag
// outside its range.
type Flags struct {
	*pflag.FlagSet
	checks  []func() error
	outputs []output
}

// Check returns an error that names the flag and its range.
func (f *Flags) Check() error {
	for _, check := range f.checks {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// Also adds a check that involves more than one flag.
func (f *Flags) Also(check func() error) { f.checks = append(f.checks, check) }

// between adds the range of a flag. NaN is outside every range.
func between[T cmp.Ordered](f *Flags, p *T, name string, low, high T) {
	f.Also(func() error {
		if !(*p >= low && *p <= high) {
			return fmt.Errorf("--%s is %v, it must be from %v to %v", name, *p, low, high)
		}
		return nil
	})
}

// Int adds an integer flag.
func (f *Flags) Int(p *int, name string, value, low, high int, usage string) {
	f.IntVar(p, name, value, usage)
	between(f, p, name, low, high)
}

// Float adds a floating-point flag.
func (f *Flags) Float(p *float64, name string, value, low, high float64, usage string) {
	f.Float64Var(p, name, value, usage)
	between(f, p, name, low, high)
}

// Time adds a duration flag.
func (f *Flags) Time(p *time.Duration, name string, value, low, high time.Duration, usage string) {
	f.DurationVar(p, name, value, usage)
	between(f, p, name, low, high)
}

// Ints adds a list of distinct integers.
func (f *Flags) Ints(p *[]int, name string, value []int, low, high int, usage string) {
	f.IntSliceVar(p, name, value, usage)
	f.Also(func() error {
		for i, n := range *p {
			switch {
			case n < low || n > high:
				return fmt.Errorf("--%s has %d, each must be from %d to %d", name, n, low, high)
			case slices.Contains((*p)[:i], n):
				return fmt.Errorf("--%s has %d twice", name, n)
			}
		}
		return nil
	})
}

// Names adds a list of known names, separated by commas, or by semicolons if names contain commas.
// An empty list is allowed.
func (f *Flags) Names(p *[]string, name string, value, known []string, usage string) {
	sep := ","
	if slices.ContainsFunc(known, func(k string) bool { return strings.Contains(k, ",") }) {
		sep = ";"
	}
	*p = value
	f.Var(&names{p, sep}, name, usage)
	f.Also(func() error {
		for i, n := range *p {
			switch {
			case !slices.Contains(known, n):
				return fmt.Errorf("--%s has %q, it takes %s", name, n, strings.Join(known, sep+" "))
			case slices.Contains((*p)[:i], n):
				return fmt.Errorf("--%s has %s twice", name, n)
			}
		}
		return nil
	})
}

// OneOf adds a choice. The first name is the default.
func (f *Flags) OneOf(p *string, name string, known []string, usage string) {
	f.StringVar(p, name, known[0], usage+": "+strings.Join(known, ", "))
	f.Also(func() error {
		if !slices.Contains(known, *p) {
			return fmt.Errorf("--%s is %q, it must be %s", name, *p, strings.Join(known, " or "))
		}
		return nil
	})
}

// Unless sets flags that the command line does not set. The arguments alternate between names and
// values.
func (f *Flags) Unless(namesAndValues ...string) {
	for pair := range slices.Chunk(namesAndValues, 2) {
		if !f.Changed(pair[0]) {
			if err := f.Set(pair[0], pair[1]); err != nil {
				panic(err)
			}
		}
	}
}

// Seed adds --seed.
func (f *Flags) Seed(p *uint64) { f.Uint64Var(p, "seed", 1, "seed of the random generators") }

// Program adds the path of a program, which is built if the path is empty.
func (f *Flags) Program(p *string, name string) {
	f.StringVar(p, name, "", "path of a built "+name+" (default: build it)")
}

// names is a flag value for a list.
type names struct {
	list *[]string
	sep  string
}

func (n *names) Type() string   { return "names" }
func (n *names) String() string { return strings.Join(*n.list, n.sep) }

func (n *names) Set(text string) error {
	*n.list = nil
	for name := range strings.SplitSeq(text, n.sep) {
		if name = strings.TrimSpace(name); name != "" {
			*n.list = append(*n.list, name)
		}
	}
	return nil
}
