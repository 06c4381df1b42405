package e2e_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/e2e/runner"
)

// Exit statuses of starlingd that the test expects.
const (
	statusAbsent  = 4
	statusRefused = 3
)

// `starlingd get KEY --prove --verify` against a header that the light client verified: a value, an
// absence, and false answers about each.
func TestGetVerify(t *testing.T) {
	p, ctx := processes(t, 60*time.Second)
	dir := filepath.Join(t.TempDir(), "node")
	home, err := runner.NewHome(ctx, "node", dir, starlingd, "init", "node", "--chain-id", "verify", "--open", "--home", dir)
	require.NoError(t, err)
	require.NoError(t, home.Configure(func(c *cfg.Config) {
		c.Consensus.TimeoutCommit, c.Consensus.CreateEmptyBlocksInterval = 200*time.Millisecond, 0
	}))
	home.Release()
	start(t, p, runner.Spec{Name: "node", Path: starlingd, Args: []string{"start", "--home", dir}, Log: home.Log()})
	await(t, ctx, home, 1)

	run := func(node string, args ...string) (stdout, stderr string, status int) {
		t.Helper()
		cmd := exec.CommandContext(ctx, starlingd, append(args, "--home", dir, "--node", node)...)
		var out, errOut bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errOut
		err := cmd.Run()
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			require.NoError(t, err)
		}
		return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
	}
	_, stderr, status := run(home.RPC(), "tx", "text", "fruit=apple")
	require.Zero(t, status, stderr)

	stdout, stderr, status := run(home.RPC(), "get", "fruit", "--prove", "--verify")
	require.Zero(t, status, stderr)
	require.Equal(t, "apple\n", stdout)
	require.Contains(t, stderr, "verified: height ")

	stdout, stderr, status = run(home.RPC(), "get", "fruits", "--prove", "--verify")
	require.Equal(t, statusAbsent, status, stderr)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "verified: height ")
	require.Contains(t, stderr, "key fruits is absent at height ")

	for _, c := range []struct{ what, key, lie string }{
		{"another value", "fruit", "pear"},
		{"a longer value", "fruit", "apples"},
		{"no value where there is one", "fruit", ""},
		{"a value where there is none", "fruits", "apple"},
	} {
		lying := httptest.NewServer(falsify(home.RPC(), c.lie))
		defer lying.Close()
		stdout, stderr, status = run(lying.URL, "get", c.key)
		require.NotEqual(t, statusRefused, status, stderr)
		require.Equal(t, c.lie, strings.TrimSpace(stdout), "%s: a client that does not verify accepts the false answer", c.what)
		stdout, stderr, status = run(lying.URL, "get", c.key, "--prove", "--verify")
		require.Equal(t, statusRefused, status, "%s: %s%s", c.what, stdout, stderr)
		require.Empty(t, stdout)
		require.Contains(t, stderr, "not proved")
	}
}

// falsify forwards RPC calls to a node and replaces the value in answers to queries by lie.
func falsify(node, lie string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request, _ := io.ReadAll(r.Body)
		answer, err := http.Post(node+r.URL.Path, "application/json", bytes.NewReader(request))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer answer.Body.Close()
		body, _ := io.ReadAll(answer.Body)
		var call struct{ Method string }
		var query struct {
			Version string          `json:"jsonrpc"`
			ID      json.RawMessage `json:"id"`
			Result  struct {
				Response map[string]any `json:"response"`
			} `json:"result"`
		}
		if json.Unmarshal(request, &call) == nil && call.Method == "abci_query" && json.Unmarshal(body, &query) == nil {
			query.Result.Response["value"] = []byte(lie)
			body, _ = json.Marshal(query)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body)
	})
}
