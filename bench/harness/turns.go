package harness

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// InTurns calls slice for each round and contestant. Each round starts with another contestant. It
// ends with the first error.
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

// decoder and encoder are of any encoding.
type (
	decoder interface{ Decode(v any) error }
	encoder interface{ Encode(v any) error }
)

// Serve answers the requests of a parent, in a child process, until there are no more.
func Serve[R, A any](requests decoder, answers encoder, answer func(R) A) error {
	for {
		var r R
		if err := requests.Decode(&r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := answers.Encode(answer(r)); err != nil {
			return err
		}
	}
}

// Quiet is a logger for Pebble that drops every message, except why it cannot continue.
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
