package lint

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const installedProgram = "/usr/local/bin/starlingd"

// TestSystemdUnit: systemd accepts the unit of networks/systemd, and rates its exposure as low.
func TestSystemdUnit(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("NOT RUN: the check of networks/systemd/starlingd.service (no systemd-analyze here)")
	}
	text, err := os.ReadFile("networks/systemd/starlingd.service")
	require.NoError(t, err)
	require.Contains(t, string(text), "ExecStart="+installedProgram+" start ")
	program, err := os.Executable() // systemd checks that the program exists
	require.NoError(t, err)
	unit := filepath.Join(t.TempDir(), "starlingd.service")
	require.NoError(t, os.WriteFile(unit, []byte(strings.ReplaceAll(string(text), installedProgram, program)), 0o600))
	for _, args := range [][]string{
		{"verify", "--man=no", "--recursive-errors=no", unit},
		// 2.0 of 10, where 10 means no protection
		{"security", "--offline=yes", "--threshold=20", "--no-pager", unit},
	} {
		out, err := exec.Command(analyze, args...).CombinedOutput()
		require.NoError(t, err, "systemd-analyze %s\n%s", strings.Join(args, " "), out)
		if args[0] == "verify" {
			require.NotContains(t, string(out), "starlingd.service:", "a line that systemd does not understand")
		}
	}
}
