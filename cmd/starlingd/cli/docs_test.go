package cli

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// docs/reference is what `starlingd docs` writes.
func TestReference(t *testing.T) {
	dir := t.TempDir()
	require.Equal(t, exitOK, Run([]string{"docs", dir}, io.Discard, os.Stderr))
	written, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.NotEmpty(t, written)
	for _, file := range written {
		want, err := os.ReadFile(filepath.Join(dir, file.Name()))
		require.NoError(t, err)
		have, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "reference", file.Name()))
		require.NoError(t, err)
		require.Equal(t, string(want), string(have), "run `go run ./cmd/starlingd docs docs/reference`")
	}
}
