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
// are, in order, with starlingd as it is here, a home folder for each group, and in the working
// folder the genesis file of a network, and the files of a new network's other validators.
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

	// What the other operators of a new network have sent.
	require.NoError(t, os.Mkdir(filepath.Join(work, "validators"), 0o700))
	for _, name := range []string{"bob", "carol"} {
		home := filepath.Join(work, name)
		for _, args := range [][]string{
			{"init", name, "--chain-id", "demo-1", "--home", home},
			{"genesis", "add-validator", filepath.Join(work, "validators", name+".json"), "--address", name + ".example:26656", "--home", home},
		} {
			out, err := exec.Command(program, args...).CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
	}
	blocks := readmeBlocks(t, string(text))
	require.NotEmpty(t, blocks)
	for _, b := range blocks {
		require.Contains(t, []string{"guide", "genesis"}, b.group, "docs/validator.md:%d", b.line)
		shell := exec.Command("bash", "-euc", b.commands)
		shell.Dir = work
		shell.Env = []string{"HOME=" + work, "STARLINGD_HOME=" + filepath.Join(work, b.group), "PATH=" + filepath.Dir(program) + ":" + os.Getenv("PATH")}
		out, err := shell.CombinedOutput()
		require.NoError(t, err, "docs/validator.md:%d: %s\n%s", b.line, b.commands, out)
	}
	backup, err := os.Stat(filepath.Join(work, "starling-keys.age"))
	require.NoError(t, err)
	require.Equal(t, "-rw-------", fmt.Sprint(backup.Mode()))
}
