package harness

import (
	"fmt"
	"os"
)

// InTurns calls slice for each round and entrant, each round starting with another entrant. It
// stops at the first error.
func InTurns[E any](rounds int, entrants []E, slice func(round int, e E) error) error {
	for round := range rounds {
		for i := range entrants {
			if err := slice(round, entrants[(round+i)%len(entrants)]); err != nil {
				return err
			}
		}
	}
	return nil
}

// Quiet is a logger for Pebble that prints only fatal errors.
type Quiet struct{}

// Infof drops the message.
func (Quiet) Infof(string, ...any) {}

// Errorf drops the message.
func (Quiet) Errorf(string, ...any) {}

// Fatalf prints the message and ends the process.
func (Quiet) Fatalf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	os.Exit(1)
}
