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

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/internal/ports"
	"github.com/starling-kv/starling/networks/monitoring"
)

// The configuration, the alerts and every query of the dashboard, in a Prometheus that scrapes two
// validators and a node that joined them: all can be evaluated, and queries that must have a result
// have one.
func TestPrometheus(t *testing.T) {
	if _, err := exec.LookPath("prometheus"); err != nil {
		t.Skip("NOT RUN: the dashboard's queries (no Prometheus here: apt-get install prometheus)")
	}
	p, ctx := processes(t, 4*time.Minute)
	homes := makeHomes(ctx, t, joinChain, "validator-0", "validator-1", "joiner")
	validators, joiner := homes[:2], homes[2]
	joinNetwork(t, homes, len(validators), len(validators))
	run := func(home *runner.Home) {
		home.Release()
		start(t, p, runner.Spec{Name: home.Name, Path: starlingd, Args: []string{"start", "--home", home.Dir}, Log: home.Log()})
	}
	for _, home := range validators {
		run(home)
	}
	address := startPrometheus(t, ctx, p, homes)
	await(t, ctx, validators[0], 1)
	snapshot := snapshotAfter(fillState(t, ctx, validators[0]))
	for _, home := range validators {
		await(t, ctx, home, snapshot+2)
	}
	joinsFrom(t, ctx, joiner, validators, validators[0], snapshot)
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

// startPrometheus starts Prometheus with the configuration of networks/monitoring, except the
// addresses of nodes, which are all on one host here, and a shorter interval.
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
	held, err := ports.Hold(1)
	require.NoError(t, err)
	held.Release()
	start(t, p, runner.Spec{Name: "prometheus", Path: "prometheus", Log: filepath.Join(dir, "log"), Args: []string{
		"--config.file", filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path", filepath.Join(dir, "data"),
		"--web.listen-address", held.Address(0), "--log.level", "warn",
	}})
	return "http://" + held.Address(0)
}

// ask queries Prometheus once it is up, and returns the data of the answer, which must not be an
// error.
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
