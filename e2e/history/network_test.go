package history_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/e2e/history"
	"github.com/starling-kv/starling/e2e/runner"
)

const (
	chainID    = "history"
	validators = 4
	// Variables that set the test up, and how many rounds a plain `go test` has.
	seedVariable, roundsVariable = "STARLING_TEST_SEED", "STARLING_HISTORY_ROUNDS"
	defaultRounds                = 1
	// between is how many transactions there are before the first kill of a round, between kills, and after the last one.
	between = 60
	// patience is for what has to come; nothing is measured by it.
	patience = 3 * time.Minute
	// bounds in which an undisturbed node's answers must be: blocks come twice a second, on a machine that may be busy.
	oldest = time.Minute
)

// TestNetwork has clients write to four validators, of which one after the other is killed and started again. Their history must have
// an order, the blocks must agree with it, and no validator may have lost what was acknowledged. Each round has a seed of its own.
func TestNetwork(t *testing.T) {
	seed, rounds := setting(t, seedVariable, uint64(time.Now().UnixNano())), setting(t, roundsVariable, defaultRounds)
	t.Logf("to repeat: %s=%d %s=%d go test -count=1 -v ./e2e/history -run '^TestNetwork$'", seedVariable, seed, roundsVariable, rounds)
	n := start(t)
	for i := range rounds {
		n.round(t, seed+i)
	}
}

func setting(t *testing.T, name string, value uint64) uint64 {
	t.Helper()
	if v := os.Getenv(name); v != "" {
		var err error
		value, err = strconv.ParseUint(v, 10, 64)
		require.NoError(t, err, name)
	}
	return value
}

type network struct {
	ctx     context.Context
	program string
	root    string
	trust   client.Trust
	homes   []*runner.Home
	all     *runner.Processes
	running []*runner.Process
}

func start(t *testing.T) *network {
	t.Helper()
	folder := t.TempDir() // removed after the processes have ended
	n := &network{all: runner.NewProcesses(context.Background())}
	n.ctx = n.all.Context()
	t.Cleanup(func() { require.NoError(t, n.all.Stop(30*time.Second)) })
	var err error
	n.root, err = runner.Root(n.ctx)
	require.NoError(t, err)
	n.program = filepath.Join(n.root, "build", "e2e", "history", "starlingd") // of its own: other tests build theirs at the same time
	require.NoError(t, runner.Build(n.ctx, n.root, "./cmd/starlingd", n.program))
	for i := range validators {
		name := fmt.Sprintf("validator-%d", i)
		dir := filepath.Join(folder, name)
		h, err := runner.NewHome(n.ctx, name, dir, n.program, "init", name, "--chain-id", chainID, "--home", dir)
		require.NoError(t, err)
		n.homes = append(n.homes, h)
	}
	genesis, err := runner.Genesis(n.homes, nil, chainID, map[string]any{
		"open": false, "admins": []string{}, "grants": []map[string]any{{"grantee": "*", "prefix": "load/"}},
	})
	require.NoError(t, err)
	n.trust = client.Trust{Genesis: genesis}
	for i, h := range n.homes {
		require.NoError(t, h.Configure(func(c *cfg.Config) {
			c.P2P.PersistentPeers = runner.Peers(n.homes[:i]...) // one of two dials the other
			c.Consensus.TimeoutCommit = 100 * time.Millisecond
			// Short, for the turns of one that is dead.
			c.Consensus.TimeoutPropose = 600 * time.Millisecond
			c.Consensus.TimeoutPrevote, c.Consensus.TimeoutPrecommit = 200*time.Millisecond, 200*time.Millisecond
			c.LogLevel = "error"
		}))
	}
	n.running = make([]*runner.Process, validators)
	for i, h := range n.homes {
		h.Release()
		n.start(t, i)
	}
	for i := range n.homes {
		n.await(t, i, 1)
	}
	return n
}

func (n *network) start(t *testing.T, i int) {
	t.Helper()
	h := n.homes[i]
	var err error
	n.running[i], err = n.all.Start(runner.Spec{Name: h.Name, Path: n.program, Args: []string{"start", "--home", h.Dir}, Log: h.Log()})
	require.NoError(t, err)
}

func (n *network) poll(t *testing.T, what string, done func(ctx context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(n.ctx, patience, fmt.Errorf("not within %v", patience))
	defer cancel()
	require.NoError(t, runner.Poll(ctx, what, func() bool { return done(ctx) }))
}

func (n *network) await(t *testing.T, i int, height int64) {
	t.Helper()
	n.poll(t, fmt.Sprintf("height %d at %s", height, n.homes[i].Name), func(ctx context.Context) bool {
		status, err := n.homes[i].Status(ctx)
		return err == nil && status.Height >= height && !status.CatchingUp
	})
}

func (n *network) round(t *testing.T, seed uint64) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 0))
	config := history.Config{ChainID: chainID, Prefix: fmt.Sprintf("load/%d/", seed), Seed: seed, Clients: 8, Patience: 5 * time.Second, Trust: &n.trust}
	for _, h := range n.homes {
		config.Nodes = append(config.Nodes, h.RPC())
	}
	run, err := history.Start(n.ctx, config)
	require.NoError(t, err)
	// One that dies stops nobody; two take the chain with them, so that clients wait in vain and do not know what became of their
	// transactions.
	for _, victims := range [][]int{random.Perm(validators)[:1], random.Perm(validators)[:2]} {
		n.transactions(t, run)
		over := run.Disturb("") // a dead proposer's turn takes everybody's time
		for _, victim := range victims {
			n.running[victim].Kill()
		}
		if len(victims) > 1 {
			n.poll(t, "clients to lose their patience", func(context.Context) bool {
				_, maybe := run.Progress()
				return maybe >= 2
			})
		}
		for _, victim := range victims {
			n.start(t, victim)
		}
		for _, victim := range victims {
			n.await(t, victim, 1)
		}
		over()
	}
	n.transactions(t, run)
	h := run.Stop()
	n.check(t, h)
}

// transactions waits until some more are done.
func (n *network) transactions(t *testing.T, run *history.Run) {
	t.Helper()
	before, _ := run.Progress()
	n.poll(t, "transactions", func(context.Context) bool {
		now, _ := run.Progress()
		return now >= before+between
	})
}

func (n *network) check(t *testing.T, h *history.History) {
	t.Helper()
	ctx, cancel := context.WithTimeout(n.ctx, patience)
	defer cancel()
	for _, home := range n.homes {
		kept, err := h.CheckAcknowledged(ctx, home.RPC())
		require.NoError(t, err, home.Name)
		require.Equal(t, len(h.Acknowledged()), kept.Held, home.Name)
	}
	var err error
	h.Blocks, err = history.FetchBlocks(ctx, n.homes[0].RPC(), h.From+1, h.Top())
	require.NoError(t, err)
	folder := filepath.Join(n.root, "build", "e2e", "history", fmt.Sprint(h.Seed))
	t.Cleanup(func() {
		if t.Failed() {
			require.NoError(t, os.MkdirAll(folder, 0o755))
			path := filepath.Join(folder, "history.json")
			require.NoError(t, h.WriteFile(path))
			t.Logf("to check the history again: go test -count=1 -v ./e2e/history -run '^TestAgain$' -again %s", path)
		}
	})
	begin := time.Now()
	require.NoError(t, h.CheckLinearizable(patience, folder))
	searched := time.Since(begin)
	require.NoError(t, h.CheckBlocks(h.Blocks))
	require.NoError(t, h.CheckReads(history.Bounds{Age: oldest, Recovery: oldest}))
	require.NotEmpty(t, h.Reads)
	answers, blocks := h.Staleness()
	t.Logf("%s; %.0f transactions a second, %d blocks, order found in %v; %d proved reads were older than another node's, by %d blocks at most",
		h.Summary(), float64(len(h.Acknowledged()))/h.Span().Seconds(), len(h.Blocks), searched.Round(time.Millisecond), answers, blocks)
}

var again = flag.String("again", "", "a history that TestAgain checks")

// TestAgain looks once more at the history of a run that failed.
func TestAgain(t *testing.T) {
	if *again == "" {
		t.Skip("-again names no history")
	}
	h, err := history.ReadFile(*again)
	require.NoError(t, err)
	t.Log(h.Summary())
	require.NoError(t, h.CheckLinearizable(patience, filepath.Dir(*again)))
	if len(h.Blocks) > 0 {
		require.NoError(t, h.CheckBlocks(h.Blocks))
	}
	require.NoError(t, h.CheckReads(history.Bounds{Age: oldest, Recovery: oldest}))
}
