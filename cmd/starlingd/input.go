package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
)

// openInput opens a FILE of the command line; - is standard input.
func openInput(cmd *cobra.Command, path string) (io.ReadCloser, error) {
	if path == "-" {
		return io.NopCloser(cmd.InOrStdin()), nil
	}
	return os.Open(path)
}

// readInput reads a FILE of the command line, of at most limit bytes.
func readInput(cmd *cobra.Command, path string, limit int64) ([]byte, error) {
	in, err := openInput(cmd, path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	content, err := io.ReadAll(io.LimitReader(in, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read %q: %w", path, err)
	}
	if int64(len(content)) > limit {
		return nil, usagef("%q has more than %d bytes", path, limit)
	}
	return content, nil
}
