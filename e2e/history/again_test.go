package history_test

import (
	"flag"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/e2e/history"
)

var again = flag.String("again", "", "path of a history for TestAgain to check")

// TestAgain checks the history of a failed network once more.
func TestAgain(t *testing.T) {
	if *again == "" {
		t.Skip("-again is not set")
	}
	h, err := history.ReadFile(*again)
	require.NoError(t, err)
	t.Log(h.Summary())
	require.NoError(t, h.CheckLinearizable(3*time.Minute, filepath.Dir(*again)))
	if len(h.Blocks) > 0 {
		require.NoError(t, h.CheckBlocks(h.Blocks))
	}
	require.NoError(t, h.CheckReads(history.Bounds{Recovery: time.Minute}))
}
