package cli

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSecretsStaySecret runs a home with full logging and every command that touches keys. Files
// that others can read contain no secret, and no log, output or error shows a private key.
func TestSecretsStaySecret(t *testing.T) {
	home := filepath.Join(t.TempDir(), "home")
	rpc, p2p := freeAddress(t), freeAddress(t)
	var said bytes.Buffer
	run := func(args ...string) string {
		t.Helper()
		out, err := starlingd(t, home, rpc, args...).CombinedOutput()
		require.NoError(t, err, "%v: %s", args, out)
		said.Write(out)
		return strings.TrimSpace(string(out))
	}
	fails := func(stdin string, args ...string) {
		t.Helper()
		cmd := starlingd(t, home, rpc, args...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		require.Error(t, err, "%v: %s", args, out)
		said.Write(out)
	}
	run("keys", "add", "alice")
	run("init", "secret", "--chain-id", "secrets", "--admin", run("keys", "show", "alice", "--public-key"))
	secrets := secretsOf(t, home)
	require.Len(t, secrets, 3, "the node's key, the validator's and alice's")

	process := starlingd(t, home, rpc, "start", "--log_level", "debug", "--p2p.laddr", "tcp://"+p2p, "--consensus.timeout_commit", "10ms",
		"--transport.laddr", "127.0.0.1:0")
	logs, err := os.Create(filepath.Join(t.TempDir(), "node.log"))
	require.NoError(t, err)
	defer logs.Close()
	process.Stdout, process.Stderr = logs, logs
	require.NoError(t, process.Start())
	t.Cleanup(func() {
		if process.ProcessState == nil {
			_ = process.Process.Kill()
			_ = process.Wait()
		}
	})
	require.NoError(t, waitHeight("http://"+rpc, 1))
	run("grant", "alice", "a/", "--from", "alice")
	run("tx", "put", "a/1", "x", "--from", "alice")
	run("get", "a/1", "--prove", "--verify")
	for _, args := range [][]string{{"status"}, {"status", "--output", "json"}, {"keys", "list"}, {"keys", "show", "alice"}} {
		run(args...)
	}
	fails("", "tx", "put", "b/1", "x", "--from", "alice")
	fails("", "start")
	fails(secrets[0].seed, "keys", "import", "alice") // it already exists
	fails(secrets[0].seed+"00", "keys", "import", "other")
	require.NoError(t, process.Process.Signal(os.Interrupt))
	require.NoError(t, process.Wait())
	fails("", "get", "a/1") // no node answers

	// The error about a damaged key file.
	require.NoError(t, os.Truncate(filepath.Join(home, "config", "priv_validator_key.json"), 200))
	require.NoError(t, os.Truncate(filepath.Join(home, "config", "node_key.json"), 60))
	fails("", "start")
	fails("", "status")

	logged, err := os.ReadFile(logs.Name())
	require.NoError(t, err)
	require.Contains(t, string(logged), "Starling node started")
	require.Greater(t, len(logged), 10_000, "this is not a log at debug level")
	text := strings.ToLower(said.String() + string(logged))
	for _, s := range secrets {
		for _, form := range s.forms {
			require.NotContains(t, text, strings.ToLower(form), "the private key of %s was shown", s.file)
		}
	}
	othersMayRead(t, home)
}

func starlingd(t *testing.T, home, rpc string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], append(args, "--home", home)...)
	cmd.Env = append(os.Environ(), programVariable+"=1", "STARLINGD_RPC_LADDR=tcp://"+rpc, "STARLINGD_NODE=tcp://"+rpc)
	return cmd
}

type secret struct {
	file, seed string   // seed: hex
	forms      []string // encodings in which it might be shown
}

// secretsOf finds the private keys under home.
func secretsOf(t *testing.T, home string) (secrets []secret) {
	t.Helper()
	for _, file := range []string{"config/node_key.json", "config/priv_validator_key.json", "keys/alice.json"} {
		raw, err := os.ReadFile(filepath.Join(home, file))
		require.NoError(t, err)
		var content struct {
			PrivKey struct{ Value []byte } `json:"priv_key"`
			Seed    string
		}
		require.NoError(t, json.Unmarshal(raw, &content))
		seed := content.PrivKey.Value
		if content.Seed != "" {
			seed, err = hex.DecodeString(content.Seed)
			require.NoError(t, err)
		}
		require.GreaterOrEqual(t, len(seed), 32)
		seed = seed[:32]
		// The first 30 bytes: their base64 is the beginning of any longer secret's.
		secrets = append(secrets, secret{file, hex.EncodeToString(seed), []string{
			hex.EncodeToString(seed[:30]), base64.StdEncoding.EncodeToString(seed[:30]), base64.URLEncoding.EncodeToString(seed[:30]), string(seed),
		}})
	}
	return secrets
}

// othersMayRead checks the modes: only the owner can enter the home, and a key file is readable by
// its owner only.
func othersMayRead(t *testing.T, home string) {
	t.Helper()
	for _, dir := range []string{home, filepath.Join(home, "config"), filepath.Join(home, "data"), filepath.Join(home, "keys")} {
		info, err := os.Stat(dir)
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o700), info.Mode().Perm(), dir)
	}
	for _, file := range []string{"config/node_key.json", "config/priv_validator_key.json", "data/priv_validator_state.json", "keys/alice.json",
		"config/config.toml", "config/app.toml"} {
		info, err := os.Stat(filepath.Join(home, file))
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o600), info.Mode().Perm(), file)
	}
}
