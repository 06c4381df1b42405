package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/e2e/runner"
)

// What is built once for all tests, into build/e2e of the module.
var starlingd, byzantine, localnet, relay, cometbft string

func TestMain(m *testing.M) {
	if err := buildAll(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func buildAll() error {
	ctx := context.Background()
	root, err := runner.Root(ctx)
	if err != nil {
		return err
	}
	for _, program := range []struct {
		path      *string
		name      string
		dir, from string
	}{
		{&starlingd, "starlingd", root, "./cmd/starlingd"},
		{&byzantine, "byzantine", root, "./e2e/byzantine"},
		{&localnet, "localnet", root, "./cmd/localnet"},
		{&relay, "relay", root, "./e2e/relay"},
		{&cometbft, "cometbft", filepath.Join(root, "e2e", "stock"), "github.com/cometbft/cometbft/cmd/cometbft"},
	} {
		*program.path = filepath.Join(root, "build", "e2e", program.name)
		if err := runner.Build(ctx, program.dir, program.from, *program.path); err != nil {
			return err
		}
	}
	return nil
}

// processes returns a supervisor for the test, whose context ends when a node dies or after limit. What it started ends with the test.
func processes(t *testing.T, limit time.Duration) (*runner.Processes, context.Context) {
	t.Helper()
	t.TempDir() // all of them are removed when the first one's turn is: after the processes have ended
	p := runner.NewProcesses(context.Background())
	ctx, cancel := context.WithTimeoutCause(p.Context(), limit, fmt.Errorf("not done within %v", limit))
	t.Cleanup(func() {
		cancel()
		require.NoError(t, p.Stop(10*time.Second))
	})
	return p, ctx
}

// makeHomes makes a home for each name, of nodes of one chain.
func makeHomes(ctx context.Context, t *testing.T, chainID string, names ...string) []*runner.Home {
	t.Helper()
	homes := make([]*runner.Home, 0, len(names))
	for _, name := range names {
		dir := filepath.Join(t.TempDir(), name)
		home, err := runner.NewHome(ctx, name, dir, starlingd, "init", name, "--chain-id", chainID, "--home", dir)
		require.NoError(t, err)
		homes = append(homes, home)
	}
	return homes
}

func start(t *testing.T, p *runner.Processes, spec runner.Spec) {
	t.Helper()
	_, err := p.Start(spec)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			for _, line := range runner.Tail(spec.Log, 25) {
				t.Logf("%s: %s", spec.Name, line)
			}
		}
	})
}
