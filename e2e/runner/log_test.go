package runner_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/e2e/runner"
)

func TestLogged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.log")
	require.Empty(t, runner.Logged(path, runner.LogRestored))
	require.NoError(t, os.WriteFile(path, []byte(`I[2026-11-21|18:53:52.781] Joining: restoring a snapshot                module=join height=15 chunks=375 retarget=false
panic: not a line of the log
E[2026-11-21|18:53:52.800] Banned a peer that sent invalid data         module=join peer=6347bb reason="chunk 174 of 375: it = \"bad\""
I[2026-11-21|18:53:53.307] Joining: the state is restored               module=join height=15 chunks=375/376 seconds=0.6
I[2026-11-21|18:53:53.308] Joining: the state is restored               module=join heig`), 0o644))
	lines := runner.Logged(path, runner.LogRestoring, runner.LogRestored)
	require.Len(t, lines, 2)
	require.Equal(t, runner.LogLine{
		Message: runner.LogRestoring, Fields: map[string]string{"module": "join", "height": "15", "chunks": "375", "retarget": "false"},
	}, lines[0])
	require.EqualValues(t, 15, lines[0].Int("height"))
	require.EqualValues(t, 375, lines[1].Int("chunks"))
	require.Equal(t, "0.6", lines[1].Fields["seconds"])
	require.Zero(t, lines[1].Int("seconds"))
	require.Zero(t, lines[1].Int("nothing"))
	banned := runner.Logged(path, runner.LogBanned)
	require.Len(t, banned, 1)
	require.Equal(t, `chunk 174 of 375: it = "bad"`, banned[0].Fields["reason"])
}
