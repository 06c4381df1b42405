package harness

import (
	"errors"
	"fmt"
	"os"
)

// output is a file that a benchmark writes at its end.
type output struct {
	name string // of the flag
	file *string
}

// Output adds a flag for a file that the benchmark writes at its end; empty: none.
func (f *Flags) Output(p *string, name, usage string) {
	f.StringVar(p, name, "", usage)
	f.outputs = append(f.outputs, output{name, p})
}

// Reserve checks that all output files can be written, before a run of hours. discard removes those
// that did not exist before.
func (f *Flags) Reserve() (discard func(), err error) {
	var made []string
	discard = func() {
		for _, file := range made {
			_ = os.Remove(file) // a leftover empty file is harmless
		}
	}
	for _, o := range f.outputs {
		if *o.file == "" {
			continue
		}
		_, err := os.Stat(*o.file)
		isNew := errors.Is(err, os.ErrNotExist)
		file, err := os.OpenFile(*o.file, os.O_WRONLY|os.O_CREATE, 0o644) //nolint:gosec // results are world-readable
		if err != nil {
			discard()
			return nil, fmt.Errorf("--%s: cannot write the result; name a file in an existing folder: %w", o.name, err)
		}
		file.Close()
		if isNew {
			made = append(made, *o.file)
		}
	}
	return discard, nil
}
