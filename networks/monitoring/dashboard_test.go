package monitoring_test

import (
	"flag"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/networks/monitoring"
)

var update = flag.Bool("update", false, "write starling.json")

const file = "starling.json"

func TestDashboardIsWritten(t *testing.T) {
	want, err := monitoring.Dashboard()
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.WriteFile(file, want, 0o644))
	}
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "run `go generate ./networks/monitoring`")
}

// Prometheus' own tool checks its configuration, and plays networks with problems through the
// alerts.
func TestPromtool(t *testing.T) {
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Skip("NOT RUN: the check of Prometheus' configuration and alerts (no promtool: apt-get install prometheus)")
	}
	for _, args := range [][]string{
		{"check", "config", "prometheus.yml"},
		{"check", "rules", "rules/starling.yml"},
		{"test", "rules", "rules/starling.test.yml"},
	} {
		out, err := exec.CommandContext(t.Context(), "promtool", args...).CombinedOutput()
		require.NoError(t, err, "promtool %v\n%s", args, out)
	}
}
