package starling

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/e2e/runner"
)

// TestValidatorGuide runs the commands of docs/validator.md that are marked as those of the README
// are, in order, with starlingd as it is here, a home folder of its own, and the genesis file of a
// network in the working folder.
func TestValidatorGuide(t *testing.T) {
	text, err := os.ReadFile("docs/validator.md")
	require.NoError(t, err)
	work := t.TempDir()
	program, err := runner.Program(t.Context(), "./cmd/starlingd")
	require.NoError(t, err)
	network := filepath.Join(work, "network")
	out, err := exec.Command(program, "init", "--home", network, "--chain-id", "guide-1", "--open").CombinedOutput()
	require.NoError(t, err, "%s", out)
	genesis, err := os.ReadFile(filepath.Join(network, "config", "genesis.json"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(work, "genesis.json"), genesis, 0o600))

	home := filepath.Join(work, "home")
	env := []string{"HOME=" + work, "STARLINGD_HOME=" + home, "PATH=" + filepath.Dir(program) + ":" + os.Getenv("PATH")}
	blocks := readmeBlocks(t, string(text))
	require.NotEmpty(t, blocks)
	for _, b := range blocks {
		require.Equal(t, "guide", b.group, "docs/validator.md:%d", b.line)
		shell := exec.Command("bash", "-euc", b.commands)
		shell.Dir, shell.Env = work, env
		out, err := shell.CombinedOutput()
		require.NoError(t, err, "docs/validator.md:%d: %s\n%s", b.line, b.commands, out)
	}
	backup, err := os.Stat(filepath.Join(work, "starling-keys.tar.gz"))
	require.NoError(t, err)
	require.Equal(t, "-rw-------", fmt.Sprint(backup.Mode()))
}
