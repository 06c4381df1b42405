package lint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	rpchttp "github.com/cometbft/cometbft/rpc/client/http"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/internal/ports"
)

// operatorPages are the guides for operators, in the order in which their commands must run: a
// group continues on the next page.
var operatorPages = []string{
	"docs/how-to/install.md",
	"docs/how-to/validator.md",
	"docs/how-to/genesis.md",
	"docs/how-to/keys.md",
	"docs/how-to/backup.md",
	"docs/how-to/latency.md",
	"docs/how-to/sentries.md",
	"docs/how-to/upgrade.md",
	"docs/how-to/monitoring.md",
	"docs/how-to/troubleshooting.md",
}

// guideBlock is a block of an operator's guide.
type guideBlock struct {
	place string // page:line
	block
}

// guideBlocks returns the `sh` blocks of the operators' guides in order, and the text of all pages.
// Each block must belong to one of the groups that the tests below run.
func guideBlocks(t *testing.T) (blocks []guideBlock, text string) {
	t.Helper()
	for _, page := range operatorPages {
		content, err := os.ReadFile(page)
		require.NoError(t, err)
		text += string(content)
		for _, b := range readmeBlocks(t, string(content)) {
			place := fmt.Sprintf("%s:%d", page, b.line)
			require.Contains(t, []string{"guide", "genesis", "network"}, b.group, place)
			blocks = append(blocks, guideBlock{place, b})
		}
	}
	require.NotEmpty(t, blocks)
	return blocks, text
}

// TestValidatorGuide runs the commands of the operators' guides that are marked like those of the
// README, in order, with the current starlingd and a home folder for each group. The working folder
// has the genesis file of a network and the files of the other validators of a new network.
func TestValidatorGuide(t *testing.T) {
	blocks, text := guideBlocks(t)
	work := t.TempDir()
	program, err := runner.Program(t.Context(), "./cmd/starlingd")
	require.NoError(t, err)
	network := filepath.Join(work, "network")
	out, err := exec.Command(program, "init", "--home", network, "--chain-id", "guide-1", "--open").CombinedOutput()
	require.NoError(t, err, "%s", out)
	genesis, err := os.ReadFile(filepath.Join(network, "config", "genesis.json"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(work, "genesis.json"), genesis, 0o600))

	// The files sent by the other operators of a new network.
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
	for _, b := range blocks {
		if b.group == "network" {
			continue // see TestValidatorGuideNetwork
		}
		shell := exec.Command("bash", "-euc", b.commands)
		shell.Dir = work
		shell.Env = []string{"HOME=" + work, "STARLINGD_HOME=" + filepath.Join(work, b.group), "PATH=" + filepath.Dir(program) + ":" + os.Getenv("PATH")}
		out, err := shell.CombinedOutput()
		require.NoError(t, err, "%s: %s\n%s", b.place, b.commands, out)
	}
	backup, err := os.Stat(filepath.Join(work, "starling-keys.age"))
	require.NoError(t, err)
	require.Equal(t, "-rw-------", fmt.Sprint(backup.Mode()))

	// Blocks that are not run need their own host (useradd, install, systemctl, nft) or another
	// program (priv_val_server). They must not contain starlingd commands.
	require.NotRegexp(t, "(?m)^starlingd ", strings.Join(regexp.MustCompile("(?s)```text\n.*?```").FindAllString(text, -1), "\n"))
}

// guideWrapper runs starlingd as for a user at a terminal who answers its questions with yes.
const guideWrapper = `#!/bin/sh
case "$*" in
*--dry-run*) ;;
"validator set "* | "admin approve "*) set -- "$@" --yes ;;
esac
exec %q "$@"
`

// TestValidatorGuideNetwork runs the commands of the operators' guides that need a network: a node
// with two admins, and a new node that joins it, becomes a validator and is removed again.
func TestValidatorGuideNetwork(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for about twenty blocks")
	}
	blocks, _ := guideBlocks(t)
	program, err := runner.Program(t.Context(), "./cmd/starlingd")
	require.NoError(t, err)
	work, held := t.TempDir(), holdPorts(t, 7)
	bin, network, joiner := filepath.Join(work, "bin"), filepath.Join(work, "network"), filepath.Join(work, "joiner")
	require.NoError(t, os.Mkdir(bin, 0o700))
	for name, script := range map[string]string{"starlingd": fmt.Sprintf(guideWrapper, program), "journalctl": "#!/bin/sh\n"} {
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte(script), 0o700)) //nolint:gosec // it is a program
	}
	run := func(args ...string) string {
		t.Helper()
		var complaints strings.Builder
		c := exec.Command(program, args...)
		c.Stderr = &complaints
		out, err := c.Output()
		require.NoError(t, err, "%v: %s", args, complaints.String())
		return strings.TrimSpace(string(out))
	}
	admins := []string{"init", "network", "--chain-id", "guide-2", "--snapshot-interval", "3", "--home", network}
	for _, name := range []string{"root", "ann", "alice"} {
		run("keys", "add", name, "--home", network)
		if name != "alice" {
			admins = append(admins, "--admin", run("keys", "show", name, "--public-key", "--home", network))
		}
	}
	run(admins...)
	run("init", "joiner", "--genesis", filepath.Join(network, "config", "genesis.json"), "--home", joiner)
	id, pub, other := run("show-node-id", "--home", network), run("show-validator", "--home", joiner), run("show-validator", "--home", network)
	environment := func(home string, first int) []string {
		return []string{
			"HOME=" + work, "PATH=" + bin + ":" + os.Getenv("PATH"), "STARLINGD_HOME=" + home,
			"STARLINGD_RPC_LADDR=tcp://" + held.Address(first), "STARLINGD_P2P_LADDR=tcp://" + held.Address(first+1), "STARLINGD_TRANSPORT_LADDR=" + held.Address(first+2),
			"STARLINGD_P2P_ADDR_BOOK_STRICT=false", "STARLINGD_P2P_ALLOW_DUPLICATE_IP=true",
		}
	}
	serving := append(environment(network, 0), "STARLINGD_NODE=tcp://"+held.Address(0))
	joining := append(environment(joiner, 3), "STARLINGD_P2P_PERSISTENT_PEERS="+id+"@"+held.Address(1), "STARLINGD_JOIN_PEERS="+id+"@"+held.Address(2))
	held.Release()

	processes := runner.NewProcesses(context.Background())
	ctx, cancel := context.WithTimeoutCause(processes.Context(), 5*time.Minute, errors.New("not done within 5 minutes"))
	t.Cleanup(func() {
		cancel()
		require.NoError(t, processes.Stop(30*time.Second))
	})
	_, err = processes.Start(runner.Spec{Name: "network", Path: program, Args: []string{"start"}, Env: serving, Dir: work, Log: filepath.Join(work, "network.log")})
	require.NoError(t, err)
	rpc, err := rpchttp.New("tcp://"+held.Address(0), "/websocket")
	require.NoError(t, err)
	var words *strings.Replacer
	require.NoError(t, runner.Poll(ctx, "a snapshot", func() bool {
		status, err := rpc.Status(ctx)
		if err != nil || status.SyncInfo.LatestBlockHeight < 6 {
			return false
		}
		words = strings.NewReplacer("HEIGHT", fmt.Sprint(status.SyncInfo.LatestBlockHeight), "HASH", status.SyncInfo.LatestBlockHash.String(),
			// a voting power with which the chain continues whatever the new validator does
			"PUBKEY 10", pub+" 1", "OLD", pub, "OTHER", other, "ADMIN", "root", "ROOT", "root", "ANN", "ann")
		return true
	}))
	for i, b := range blocks {
		if b.group != "network" {
			continue
		}
		name, env := b.place, serving
		if b.staysUp != "" {
			env = joining
		}
		log := filepath.Join(work, fmt.Sprint(i))
		shell, err := processes.Start(runner.Spec{
			Name: name, Path: "bash", Args: []string{"-euc", words.Replace(b.commands)}, Env: env, Dir: work, Log: log, Ends: b.staysUp == "",
		})
		require.NoError(t, err)
		output := func() string { content, _ := os.ReadFile(log); return string(content) }
		if b.staysUp != "" {
			require.NoError(t, runner.Poll(ctx, name, func() bool { return strings.Contains(output(), b.staysUp) }), "%s", output())
			continue
		}
		select {
		case <-shell.Done():
			require.NoError(t, shell.ExitError(), "%s:\n%s\n%s", name, b.commands, output())
		case <-ctx.Done():
			require.NoError(t, context.Cause(ctx), "%s:\n%s\n%s", name, b.commands, output())
		}
	}
}

// holdPorts reserves ports on loopback until the test ends.
func holdPorts(t *testing.T, n int) *ports.Ports {
	t.Helper()
	held, err := ports.Hold(n)
	require.NoError(t, err)
	t.Cleanup(held.Release)
	return held
}
