package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

// openInput opens a FILE of the command line; - is standard input.
func openInput(cmd *cobra.Command, path string) (io.ReadCloser, error) {
	if path == "-" {
		return io.NopCloser(cmd.InOrStdin()), nil
	}
	return os.Open(path)
}

// inputFile returns the path of a FILE of the command line, for callers that read it more than
// once. - is standard input, which is copied to a temporary file; done removes that file. Errors
// name standard input.
func inputFile(cmd *cobra.Command, path string) (_ string, done func(), err error) {
	if path != "-" {
		return path, func() {}, nil
	}
	dir, err := os.MkdirTemp("", "starlingd-")
	if err != nil {
		return "", nil, err
	}
	done = func() { _ = os.RemoveAll(dir) }
	path = filepath.Join(dir, "standard-input")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		_, err = io.Copy(f, cmd.InOrStdin())
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		done()
		return "", nil, fmt.Errorf("copy standard input to %q: %w", path, err)
	}
	return path, done, nil
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
		return nil, usagef("%q has more than %d bytes, the limit", path, limit)
	}
	return content, nil
}
