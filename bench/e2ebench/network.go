package e2ebench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	cfg "github.com/cometbft/cometbft/config"

	"github.com/starling-kv/starling/e2e/runner"
)

const (
	chainID = "bench"

	// startPatience is the time limit for the first blocks of a network, generous for a busy
	// machine.
	startPatience = 3 * time.Minute

	// stopGrace is the time limit for a clean stop of a node.
	stopGrace = 20 * time.Second

	// roomForTx is the limit of a transaction that `starlingd init` writes; the limit of a request
	// body is twice that.
	roomForTx = 4 << 20
)

// kind is one of the programs that a network can consist of.
type kind struct {
	name     string
	program  string
	init     func(name, dir string) []string // arguments that make a home
	appState any                             // of genesis
	edit     func(*cfg.Config)               // beside the configuration that all networks share
	env      []string                        // of the nodes, beside the run's own
}

// openGenesis allows text transactions of any client, as kvstore does.
type openGenesis struct {
	Open   bool     `json:"open"`
	Admins []string `json:"admins"`
}

func starlingKind(program string) kind {
	return kind{
		name: nameStarling, program: program,
		init:     func(name, dir string) []string { return []string{"init", name, "--chain-id", chainID, "--home", dir} },
		appState: openGenesis{Open: true, Admins: []string{}},
		edit:     func(*cfg.Config) {},
	}
}

func kvstoreKind(program, app string) kind {
	return kind{
		name: nameKVStore, program: program,
		init:     func(_, dir string) []string { return []string{"init", "--home", dir} },
		appState: struct{}{},
		edit:     func(c *cfg.Config) { c.ProxyApp = app },
	}
}

// build builds the program of a package in dir, unless a built program is given.
func build(ctx context.Context, given, pkg, dir string) (string, error) {
	if given != "" {
		return filepath.Abs(given)
	}
	root, err := runner.Root(ctx)
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, filepath.Base(pkg))
	return program, runner.Build(ctx, root, pkg, program)
}

// Packages of the programs, relative to the module of the node: both are linked with the same
// CometBFT.
const (
	starlingdPackage = "./cmd/starlingd"
	cometbftPackage  = "github.com/cometbft/cometbft/cmd/cometbft"
)

// network is a network of running validators.
type network struct {
	kind       kind
	dir        string
	processes  *runner.Processes
	validators []*runner.Home
}

// startNetwork makes homes in dir, starts the validators, and waits until all take part in
// consensus. edit changes the configuration of each.
func startNetwork(ctx context.Context, k kind, o Network, dir string, edit func(*cfg.Config), appState any) (*network, error) {
	n := &network{kind: k, dir: dir, processes: runner.NewProcesses(ctx)}
	if err := n.start(o, edit, appState); err != nil {
		return nil, errors.Join(err, n.stop())
	}
	return n, nil
}

func (n *network) start(o Network, edit func(*cfg.Config), appState any) (err error) {
	ctx, cancel := context.WithTimeout(n.processes.Context(), startPatience)
	defer cancel()
	if n.validators, err = n.homes(ctx, "validator", o.Validators); err != nil {
		return err
	}
	if _, err := runner.Genesis(n.validators, nil, chainID, appState); err != nil {
		return err
	}
	for i, h := range n.validators {
		err := h.Configure(func(c *cfg.Config) {
			common(c, o)
			// Only one node of each pair dials: if both dial at once, both may fail, and wait for
			// seconds.
			c.P2P.PersistentPeers = runner.Peers(n.validators[:i]...)
			n.kind.edit(c)
			edit(c)
		})
		if err != nil {
			return err
		}
	}
	return n.runAll(ctx)
}

// runAll starts the validators, and waits until all take part in consensus.
func (n *network) runAll(ctx context.Context) error {
	for _, h := range n.validators {
		if err := n.run(h); err != nil {
			return err
		}
	}
	// A node that is still looking for blocks accepts no transactions.
	for _, h := range n.validators {
		err := runner.Poll(ctx, h.Name+" to take part", func() bool {
			status, err := h.Status(ctx)
			return err == nil && !status.CatchingUp && status.Height >= 2
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// restart ends the validators, and starts them with other variables in their environment.
func (n *network) restart(ctx context.Context, env ...string) error {
	if err := n.processes.Stop(stopGrace); err != nil {
		return err
	}
	n.processes, n.kind.env = runner.NewProcesses(ctx), env
	ctx, cancel := context.WithTimeout(n.processes.Context(), startPatience)
	defer cancel()
	return n.runAll(ctx)
}

// common sets what must not differ between the networks: CometBFT's defaults, with a mempool for
// the largest transaction that starlingd accepts.
func common(c *cfg.Config, o Network) {
	standard := cfg.DefaultConfig()
	c.Mempool, c.Consensus = standard.Mempool, standard.Consensus
	c.Mempool.MaxTxBytes = roomForTx
	c.RPC.MaxBodyBytes = 2 * roomForTx
	c.Consensus.TimeoutCommit = o.TimeoutCommit
	c.TxIndex.Indexer = o.Indexer
}

// homes makes n new homes, at the same time.
func (n *network) homes(ctx context.Context, role string, count int) ([]*runner.Home, error) {
	homes, errs := make([]*runner.Home, count), make([]error, count)
	var wg sync.WaitGroup
	for i := range count {
		wg.Go(func() {
			name := fmt.Sprintf("%s-%d", role, i)
			dir := filepath.Join(n.dir, name)
			if errs[i] = os.MkdirAll(dir, 0o750); errs[i] == nil {
				homes[i], errs[i] = runner.NewHome(ctx, name, dir, n.kind.program, n.kind.init(name, dir)...)
			}
		})
	}
	wg.Wait()
	err := errors.Join(errs...)
	if err != nil {
		for _, h := range homes {
			if h != nil {
				h.Release()
			}
		}
	}
	return homes, err
}

// run starts one node.
func (n *network) run(h *runner.Home, env ...string) error {
	h.Release()
	_, err := n.processes.Start(runner.Spec{
		Name: h.Name, Path: n.kind.program, Args: []string{"start", "--home", h.Dir}, Env: append(slices.Clone(n.kind.env), env...), Log: h.Log(),
	})
	return err
}

// stop ends all nodes and removes their homes.
func (n *network) stop() error {
	err := n.processes.Stop(stopGrace)
	for _, h := range n.validators {
		if h != nil {
			h.Release()
		}
	}
	return errors.Join(err, os.RemoveAll(n.dir))
}

// cpuSeconds is the CPU time of all validators since they were started.
func (n *network) cpuSeconds(ctx context.Context) (sum float64, err error) {
	for _, h := range n.validators {
		values, err := h.Scrape(ctx)
		if err != nil {
			return 0, err
		}
		sum += values["process_cpu_seconds_total"]
	}
	return sum, nil
}

// rpcs are the URLs of the validators.
func (n *network) rpcs() []string {
	return slices.Collect(func(yield func(string) bool) {
		for _, h := range n.validators {
			if !yield(h.RPC()) {
				return
			}
		}
	})
}

// copyGenesis copies the genesis file of a network into homes.
func copyGenesis(of *runner.Home, homes []*runner.Home) error {
	genesis, err := os.ReadFile(genesisFile(of))
	if err != nil {
		return err
	}
	for _, h := range homes {
		if err := os.WriteFile(genesisFile(h), genesis, 0o600); err != nil { //nolint:gosec // the folder is the run's own
			return err
		}
	}
	return nil
}

func genesisFile(h *runner.Home) string { return filepath.Join(h.Dir, "config", "genesis.json") }
