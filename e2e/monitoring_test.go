package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/networks/monitoring"
)

// The configuration, the alerts and every query of the dashboard, in a Prometheus that looks at two validators and a node that joined them: all
// can be computed, and where a network is to have figures there are some.
func TestPrometheus(t *testing.T) {
	if _, err := exec.LookPath("prometheus"); err != nil {
		t.Skip("NOT RUN: the dashboard's queries (no Prometheus here: apt-get install prometheus)")
	}
	p, ctx := processes(t, 4*time.Minute)
	var homes []*runner.Home
	for _, name := range []string{"validator-0", "validator-1", "joiner"} {
		dir := filepath.Join(t.TempDir(), name)
		home, err := runner.NewHome(ctx, name, dir, starlingd, "init", name, "--chain-id", joinChain, "--home", dir)
		require.NoError(t, err)
		homes = append(homes, home)
	}
	validators, joiner := homes[:2], homes[2]
	_, err := runner.Genesis(validators, homes[2:], joinChain, map[string]any{
		"chunk_bytes": joinChunk, "snapshot_interval": 10, "open": false, "admins": []string{},
		"grants": []map[string]any{{"grantee": "*", "prefix": joinPrefix}},
	})
	require.NoError(t, err)
	run := func(home *runner.Home) {
		home.Release()
		start(t, p, runner.Spec{Name: home.Name, Path: starlingd, Args: []string{"start", "--home", home.Dir}, Log: home.Log()})
	}
	for i, home := range validators {
		require.NoError(t, home.Configure(func(c *cfg.Config) {
			c.Consensus.TimeoutCommit = 300 * time.Millisecond
			c.P2P.PersistentPeers = runner.Peers(validators[:i]...)
		}))
		run(home)
	}
	address := startPrometheus(t, ctx, p, homes)
	await(t, ctx, validators[0], 1)
	snapshot := (fillState(t, ctx, validators[0]) + 9) / 10 * 10
	for _, home := range validators {
		await(t, ctx, home, snapshot+2)
	}
	trusted, err := validators[0].Header(ctx, snapshot)
	require.NoError(t, err)
	require.NoError(t, joiner.Configure(func(c *cfg.Config) {
		c.P2P.PersistentPeers = runner.Peers(validators...)
		c.StateSync.Enable, c.StateSync.TrustHeight, c.StateSync.TrustHash = true, trusted.Height, fmt.Sprintf("%X", trusted.Hash)
	}))
	run(joiner)
	await(t, ctx, joiner, snapshot+2)

	for _, row := range monitoring.Rows() {
		for _, panel := range row.Panels {
			for _, query := range panel.Queries {
				expr := strings.NewReplacer("$instance", ".*", "$__rate_interval", "20s").Replace(query.Expr)
				var result []any
				err := runner.Poll(ctx, fmt.Sprintf("figures of %q (%s)", panel.Title, expr), func() bool {
					result = ask(t, ctx, address, "/api/v1/query?query="+url.QueryEscape(expr))["result"].([]any)
					return query.Rare || len(result) > 0
				})
				require.NoError(t, err)
				if len(result) == 0 {
					t.Logf("%s, %s: nothing to show (%s)", row.Title, panel.Title, expr)
				}
			}
		}
	}
	alerts := 0
	for _, group := range ask(t, ctx, address, "/api/v1/rules")["groups"].([]any) {
		for _, rule := range group.(map[string]any)["rules"].([]any) {
			alerts++
			r := rule.(map[string]any)
			require.NotEqual(t, "err", r["health"], "%v: %v", r["name"], r["lastError"])
		}
	}
	require.Greater(t, alerts, 5)
}

// startPrometheus starts Prometheus with the configuration of networks/monitoring, but for the addresses of nodes, which are all on one host
// here, and a shorter interval.
func startPrometheus(t *testing.T, ctx context.Context, p *runner.Processes, homes []*runner.Home) (address string) {
	t.Helper()
	root, err := runner.Root(ctx)
	require.NoError(t, err)
	folder := filepath.Join(root, "networks", "monitoring")
	text, err := os.ReadFile(filepath.Join(folder, "prometheus.yml"))
	require.NoError(t, err)
	var kept []string
	for line := range strings.Lines(string(text)) {
		switch {
		case strings.Contains(line, "- validator-0:"):
			for _, home := range homes {
				kept = append(kept, fmt.Sprintf("          - %s\n", strings.TrimSuffix(strings.TrimPrefix(home.Metrics(), "http://"), "/metrics")))
			}
		case strings.Contains(line, ":26660"):
		default:
			kept = append(kept, line)
		}
	}
	config := strings.NewReplacer(`"([^:]+):.*"`, `"(.*)"`, "5s", "1s", "rules/starling.yml", filepath.Join(folder, "rules", "starling.yml")).
		Replace(strings.Join(kept, ""))
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o644))
	ports, err := runner.HoldPorts(1)
	require.NoError(t, err)
	ports.Release()
	start(t, p, runner.Spec{Name: "prometheus", Path: "prometheus", Log: filepath.Join(dir, "log"), Args: []string{
		"--config.file", filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path", filepath.Join(dir, "data"),
		"--web.listen-address", ports.Address(0), "--log.level", "warn",
	}})
	return "http://" + ports.Address(0)
}

// ask asks Prometheus, once it answers, and returns the data of an answer that is no error.
func ask(t *testing.T, ctx context.Context, address, path string) (data map[string]any) {
	t.Helper()
	var answer struct {
		Status, Error string
		Data          map[string]any
	}
	require.NoError(t, runner.Poll(ctx, "Prometheus", func() bool {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, address+path, nil)
		require.NoError(t, err)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return json.NewDecoder(resp.Body).Decode(&answer) == nil
	}))
	require.Equal(t, "success", answer.Status, "%s: %s", path, answer.Error)
	return answer.Data
}
