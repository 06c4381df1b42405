package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/bench/harness"
)

// measure runs a benchmark, prints its result and saves it as JSON. It fails at once if the file
// cannot be written, not after half an hour.
func measure[R interface{ Print(io.Writer) }](cmd *cobra.Command, file string, run func(context.Context, *harness.Progress) (R, error)) error {
	discard, err := reserve(file)
	if err != nil {
		return err
	}
	result, err := run(cmd.Context(), harness.NewProgress(os.Stderr))
	if err != nil {
		discard()
		return err
	}
	result.Print(cmd.OutOrStdout())
	return save(file, result)
}

// reserve checks that file can be written, by opening it. discard removes it again, unless it
// existed before.
func reserve(file string) (discard func(), err error) {
	if file == "" {
		return func() {}, nil
	}
	_, err = os.Stat(file)
	isNew := errors.Is(err, os.ErrNotExist)
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o644) //nolint:gosec // a result is for everybody to read
	if err != nil {
		return nil, fmt.Errorf("--json: the result cannot be written; name a file in a folder that exists: %w", err)
	}
	f.Close()
	return func() {
		if isNew {
			_ = os.Remove(file) // an empty file does no harm
		}
	}, nil
}

// save writes a result to a file as JSON; without a name, it does nothing.
func save(file string, result any) error {
	if file == "" {
		return nil
	}
	b, err := json.MarshalIndent(result, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, append(b, '\n'), 0o644); err != nil { //nolint:gosec // a result is for everybody to read
		return fmt.Errorf("--json: %w", err)
	}
	return nil
}
