package e2e_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The demonstration, with fewer keys and more modes of misbehaviour. The README's test runs it
// unchanged.
func TestLocalnet(t *testing.T) {
	for _, c := range []struct {
		way, keys, lies string
		provable        int // number of provable misbehaviours
		more            []string
	}{
		{"transport", "3000", "withhold,gone,drip,last,mix,header,manifest,status", 4, nil},
		// CometBFT hands chunks over one by one
		{"in-band", "300", "mix,alias,lone", 3, []string{"--in-band"}},
	} {
		t.Run(c.way, func(t *testing.T) { demonstration(t, c.way, c.keys, c.lies, c.provable, c.more) })
	}
}

func demonstration(t *testing.T, way, keys, lies string, provable int, more []string) {
	liars := strings.Count(lies, ",") + 1
	summary := filepath.Join(t.TempDir(), "out.json")
	homes := filepath.Join(t.TempDir(), "homes")
	args := append([]string{
		"--validators", "2", "--liars", strconv.Itoa(liars), "--lie", lies, "--keys", keys, "--exit", "--json", summary, "--dir", homes, "--timeout", "5m",
	}, more...)
	out, err := exec.CommandContext(t.Context(), localnet, args...).CombinedOutput()
	t.Logf("%s", out)
	require.NoError(t, err)

	content, err := os.ReadFile(summary)
	require.NoError(t, err)
	var got map[string]any
	require.NoError(t, json.Unmarshal(content, &got))
	names := []string{"validators", "liars", "keys", "height", "chunks", "chunks_rejected", "peers_rejected", "join_seconds",
		"app_hash_equal", "joiner_height", "way"}
	require.Len(t, got, len(names))
	for _, name := range names {
		require.Contains(t, got, name)
	}
	require.EqualValues(t, 2, got["validators"])
	require.EqualValues(t, liars, got["liars"])
	require.Equal(t, keys, fmt.Sprint(got["keys"]))
	require.Equal(t, way, got["way"])
	require.Equal(t, true, got["app_hash_equal"])
	require.Greater(t, got["chunks"], 100.0)
	if !strings.Contains(lies, "header") { // otherwise false headers may already have led to bans
		require.Greater(t, got["chunks_rejected"], 0.0)
	}
	require.GreaterOrEqual(t, got["peers_rejected"], 1.0)
	require.LessOrEqual(t, got["peers_rejected"], float64(provable), "only peers whose misbehaviour can be proved")
	require.Equal(t, got["height"], got["joiner_height"])

	// --dir keeps the homes.
	for _, node := range []string{"validator-0", "validator-1", "liar-2", "joiner"} {
		require.FileExists(t, filepath.Join(homes, node+".log"))
	}
	log, err := os.ReadFile(filepath.Join(homes, "joiner.log"))
	require.NoError(t, err)
	require.Equal(t, way == "transport", bytes.Contains(log, []byte("Joining: the state is restored")))
	config, err := os.ReadFile(filepath.Join(homes, "joiner", "config", "config.toml"))
	require.NoError(t, err)
	require.Equal(t, way == "transport", bytes.Contains(config, []byte(`rpc_servers = ""`)), "no RPC server is needed")
}

// With storage nodes, most nodes have a part of the state, and the joiner fetches no snapshot.
func TestLocalnetSharded(t *testing.T) {
	summary, homes := filepath.Join(t.TempDir(), "out.json"), filepath.Join(t.TempDir(), "homes")
	out, err := exec.CommandContext(t.Context(), localnet, "--validators", "3", "--shards", "2", "--keys", "2000", "--exit", "--json", summary, "--dir", homes,
		"--timeout", "5m").CombinedOutput()
	t.Logf("%s", out)
	require.NoError(t, err)
	content, err := os.ReadFile(summary)
	require.NoError(t, err)
	var got map[string]any
	require.NoError(t, json.Unmarshal(content, &got))
	require.EqualValues(t, 2, got["shards"])
	require.EqualValues(t, 0, got["liars"])
	require.Equal(t, "sharded", got["way"])
	require.Equal(t, true, got["app_hash_equal"])
	require.Equal(t, got["height"], got["joiner_height"])
	for _, node := range []string{"validator-0", "storage-1", "joiner"} {
		require.FileExists(t, filepath.Join(homes, node+".log"))
	}
	require.NoDirExists(t, filepath.Join(homes, "joiner", "data", "state"), "it has no state on disk")
}

func TestLocalnetRefusesWrongFlags(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--validators", "0"}, "--validators is 0, it must be from 1 to 32"},
		{[]string{"--liars", "-1"}, "--liars is -1"},
		{[]string{"--keys", "5"}, "--keys is 5, it must be from 100"},
		{[]string{"--shards", "99"}, "--shards is 99"},
		{[]string{"--shards", "2", "--liars", "1"}, "use only one of the two"},
		{[]string{"--shards", "2", "--in-band"}, "omit it with --shards"},
		{[]string{"--timeout", "0s"}, "--timeout is 0s"},
		{[]string{"--lie", "gossip"}, `"gossip" is not a mode`},
		{[]string{"--dir", "."}, "is not empty"},
		{[]string{"seven"}, "unknown command"},
	} {
		out, err := exec.CommandContext(t.Context(), localnet, c.args...).CombinedOutput()
		require.Error(t, err, "%v", c.args)
		require.Contains(t, string(out), c.want, "%v", c.args)
	}
}

// If a node dies, the message names it and its folder, and all other nodes end.
func TestLocalnetTellsWhoDied(t *testing.T) {
	homes := filepath.Join(t.TempDir(), "homes")
	cmd := exec.CommandContext(t.Context(), localnet, "--validators", "2", "--liars", "0", "--keys", "100", "--dir", homes)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(stdout)
	for lines.Scan() && !strings.Contains(lines.Text(), "written, the last at height") {
	} // from now on it only waits
	kill(t, filepath.Join(homes, "validator-1"))
	rest, err := io.ReadAll(stdout)
	require.NoError(t, err)
	require.Error(t, cmd.Wait())
	require.Contains(t, stderr.String(), "validator-1 ended early (signal: killed)")
	require.Contains(t, string(rest), homes)
	require.Empty(t, commandLinesWith(t, homes))
}

// kill ends the one process that has text in its command line.
func kill(t *testing.T, text string) {
	t.Helper()
	out, err := exec.Command("ps", "-A", "-ww", "-o", "pid=,args=").Output()
	require.NoError(t, err)
	var pids []int
	for line := range strings.Lines(string(out)) {
		if number, args, _ := strings.Cut(strings.TrimSpace(line), " "); strings.Contains(args, text) {
			pid, err := strconv.Atoi(number)
			require.NoError(t, err)
			pids = append(pids, pid)
		}
	}
	require.Len(t, pids, 1)
	require.NoError(t, syscall.Kill(pids[0], syscall.SIGKILL))
}

// If the demonstration is interrupted, it leaves no node behind: on Ctrl-C it stops them, and if it
// is killed itself, the kernel ends them (on Linux).
func TestLocalnetLeavesNobodyBehind(t *testing.T) {
	for _, sig := range []os.Signal{os.Interrupt, os.Kill} {
		homes := filepath.Join(t.TempDir(), "homes")
		cmd := exec.CommandContext(t.Context(), localnet, "--validators", "2", "--liars", "0", "--keys", "100", "--exit", "--dir", homes)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		stdout, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := bufio.NewScanner(stdout)
		for lines.Scan() && !strings.Contains(lines.Text(), "making blocks") {
		}
		require.Len(t, commandLinesWith(t, homes), 1+2, "the demonstration and its validators")
		require.NoError(t, cmd.Process.Signal(sig))
		_, _ = io.Copy(io.Discard, stdout)
		require.Error(t, cmd.Wait())
		if sig == os.Interrupt {
			require.Equal(t, 1, cmd.ProcessState.ExitCode())
			require.Equal(t, "localnet: interrupted\n", stderr.String())
			require.Empty(t, commandLinesWith(t, homes))
			continue
		}
		require.Eventually(t, func() bool { return len(commandLinesWith(t, homes)) == 0 }, 30*time.Second, 50*time.Millisecond)
	}
}

// commandLinesWith lists the running processes that have text in their command line.
func commandLinesWith(t *testing.T, text string) (found []string) {
	t.Helper()
	var lines []string
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, file := range files {
		line, _ := os.ReadFile(file) // the process may have ended since
		lines = append(lines, string(line))
	}
	if len(files) == 0 { // not Linux
		out, err := exec.Command("ps", "-A", "-ww", "-o", "args=").Output()
		require.NoError(t, err)
		lines = strings.Split(string(out), "\n")
	}
	for _, line := range lines {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}
