package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/e2e/runner"
)

// Paths of the programs that the tests start; see runner.Program.
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
	for pkg, path := range map[string]*string{
		"./cmd/starlingd": &starlingd, "./e2e/byzantine": &byzantine, "./cmd/localnet": &localnet, "./e2e/relay": &relay,
	} {
		if *path, err = runner.Program(ctx, pkg); err != nil {
			return err
		}
	}
	cometbft = filepath.Join(root, "build", "programs", "cometbft")
	return runner.Install(ctx, stockCometBFT, stockVersion, cometbft)
}

// slower is the factor between a time limit and the usual time on a quiet machine.
const slower = 3

// processes returns a supervisor for the test, whose context ends when a node dies or after slower
// times limit, the usual time on a quiet machine.
// The processes that it started end with the test.
func processes(t *testing.T, limit time.Duration) (*runner.Processes, context.Context) {
	t.Helper()
	// registered before p.Stop: so all temporary folders are removed after the processes have ended
	t.TempDir()
	p := runner.NewProcesses(context.Background())
	limit *= slower
	ctx, cancel := context.WithTimeoutCause(p.Context(), limit, fmt.Errorf("not done within %v", limit))
	t.Cleanup(func() {
		cancel()
		require.NoError(t, p.Stop(time.Minute))
	})
	return p, ctx
}

// makeHomes makes a home for each name; the nodes are of one chain.
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

// joinNetwork gives homes one genesis file, in which the first `signing` homes are the validators.
// The first `dialled` homes dial each other, and the rest dial them. Anybody may write under
// joinPrefix, and a state of fillState has hundreds of chunks.
func joinNetwork(t *testing.T, homes []*runner.Home, signing, dialled int) *types.GenesisDoc {
	t.Helper()
	doc, err := runner.Genesis(homes[:signing], homes[signing:], joinChain, map[string]any{
		"chunk_bytes": joinChunk, "snapshot_interval": joinInterval, "open": false, "admins": []string{},
		"grants": []map[string]any{{"grantee": "*", "prefix": joinPrefix}},
	})
	require.NoError(t, err)
	for i, home := range homes {
		require.NoError(t, home.Configure(func(c *cfg.Config) {
			c.Consensus.TimeoutCommit, c.Consensus.CreateEmptyBlocksInterval, c.Consensus.TimeoutPropose = 400*time.Millisecond, 0, 600*time.Millisecond
			// only one node of each pair dials the other
			c.P2P.PersistentPeers = runner.Peers(homes[:min(i, dialled)]...)
		}))
	}
	return doc
}

// joinsFrom configures a home to join by state sync from peers, with a trusted header of the given
// height from one node.
func joinsFrom(t *testing.T, ctx context.Context, joiner *runner.Home, peers []*runner.Home, trusted *runner.Home, height int64, more ...func(*cfg.Config)) {
	t.Helper()
	header, err := trusted.Header(ctx, height)
	require.NoError(t, err)
	require.NoError(t, joiner.Configure(func(c *cfg.Config) {
		if len(peers) > 0 {
			c.P2P.PersistentPeers = runner.Peers(peers...)
		}
		c.StateSync.Enable, c.StateSync.TrustHeight, c.StateSync.TrustHash = true, header.Height, fmt.Sprintf("%X", header.Hash)
		for _, edit := range more {
			edit(c)
		}
	}))
}

// snapshotAfter is the height of the first snapshot, in a network of joinNetwork, that holds a
// write at a height.
func snapshotAfter(height int64) int64 {
	return (height + joinInterval - 1) / joinInterval * joinInterval
}

func start(t *testing.T, p *runner.Processes, spec runner.Spec) *runner.Process {
	t.Helper()
	process, err := p.Start(spec)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			for _, line := range runner.Tail(spec.Log, 25) {
				t.Logf("%s: %s", spec.Name, line)
			}
		}
	})
	return process
}
