package joinbench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/e2e/runner"
)

// Options are the options of a run.
type Options struct {
	Blocks     int
	BlockBytes int // of each
	ValueBytes int // of a transaction
	Rounds     int
	Seed       uint64
	Patience   time.Duration // for one join
	Starlingd  string        // a built program; "": it is built
	Dir        string        // parent of the run's folder; "": the system's
}

// Check returns an error that names the flag that is out of range, and the range.
func (o Options) Check() error {
	switch {
	case o.Blocks < 2 || o.Blocks > 100_000:
		return fmt.Errorf("--blocks is %d, it must be from 2 to 100000", o.Blocks)
	case o.BlockBytes < 1<<10 || o.BlockBytes > 2<<20:
		return fmt.Errorf("--block-bytes is %d, it must be from 1024 to 2097152", o.BlockBytes)
	case o.ValueBytes < 16 || o.ValueBytes > o.BlockBytes:
		return fmt.Errorf("--value-bytes is %d, it must be from 16 to --block-bytes", o.ValueBytes)
	case o.Rounds < 1 || o.Rounds > 100:
		return fmt.Errorf("--rounds is %d, it must be from 1 to 100", o.Rounds)
	case o.Patience < time.Second:
		return fmt.Errorf("--patience is %v, it must be 1s or more", o.Patience)
	}
	return nil
}

// Result is medians over the rounds, in seconds from the joiner's start to its RPC server's
// reporting the chain's last block but one.
type Result struct {
	Blocks        int      `json:"blocks"`
	RDMAS         *float64 `json:"rdma_s"` // null: there is no device
	TCPS          float64  `json:"tcp_s"`
	BlocksyncS    float64  `json:"blocksync_s"`
	Blocksync500S float64  `json:"blocksync_500_s"`
	// CPUS is the joiner's CPU time over TCP, in seconds, and CPUPeak its greatest use in a second,
	// in processors.
	CPUS    float64 `json:"cpu_s"`
	CPUPeak float64 `json:"cpu_peak"`

	BlockBytes int             `json:"block_bytes"`
	ValueBytes int             `json:"value_bytes"`
	Rounds     int             `json:"rounds"`
	Machine    harness.Machine `json:"machine"`
}

// Print writes the result as text.
func (r *Result) Print(w io.Writer) {
	fmt.Fprintf(w, "%d blocks of %d bytes, values of %d, one peer, medians of %d rounds\n\n", r.Blocks, r.BlockBytes, r.ValueBytes, r.Rounds)
	mb := float64(r.Blocks) * float64(r.BlockBytes) / 1e6
	for _, line := range []struct {
		name    string
		seconds float64
	}{{"over the transport, TCP", r.TCPS}, {"block sync, 5.12 MB/s", r.BlocksyncS}, {"block sync, 500 MB/s", r.Blocksync500S}} {
		fmt.Fprintf(w, "%-26s %8.2f s  %7.1f MB/s\n", line.name, line.seconds, mb/line.seconds)
	}
	fmt.Fprintf(w, "\njoiner over TCP: %.2f CPU seconds, at most %.2f processors in a second\n", r.CPUS, r.CPUPeak)
	fmt.Fprintf(w, "over TCP / block sync: %.2f (at most 0.5), at 500 MB/s: %.2f (at most 1)\n", r.TCPS/r.BlocksyncS, r.TCPS/r.Blocksync500S)
}

// The ways of a joiner.
const (
	wayTCP = iota
	wayBlocksync
	wayBlocksync500
	ways
)

var wayNames = [ways]string{"TCP", "block sync", "block sync 500"}

// run is a run in progress.
type run struct {
	o         Options
	dir       string
	program   string
	validator *runner.Home
	progress  *harness.Progress
}

const (
	chainID   = "bench"
	stopGrace = 20 * time.Second
	askEvery  = 50 * time.Millisecond
	rate500   = 500_000_000
	// oldGenesis makes the chain's blocks old, so that joiners ask who is ahead.
	oldGenesis = 24 * time.Hour
)

// Run measures. It ends its processes in any case.
func Run(ctx context.Context, o Options, progress *harness.Progress) (result *Result, err error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	err = harness.InFolder(ctx, o.Dir, "nodes' homes", progress, func(dir string) error {
		r := &run{o: o, dir: dir, progress: progress}
		result, err = r.run(ctx)
		return err
	})
	return result, err
}

func (r *run) run(ctx context.Context) (_ *Result, err error) {
	if r.program = r.o.Starlingd; r.program == "" {
		if r.program, err = runner.Program(ctx, "./cmd/starlingd"); err != nil {
			return nil, err
		}
	}
	if r.validator, err = r.home(ctx, "validator"); err != nil {
		return nil, err
	}
	if err := oldenGenesis(r.validator); err != nil {
		return nil, err
	}
	r.progress.Begin("chain", "blocks", r.o.Blocks)
	if err := makeChain(ctx, r.validator.Dir, r.o, func() { r.progress.Add(1) }); err != nil {
		return nil, fmt.Errorf("make the chain: %w", err)
	}
	r.progress.Begin("join", "joins", ways*r.o.Rounds)
	var seconds [ways][]float64
	var cpu, peak []float64
	for round := range r.o.Rounds {
		for i := range ways {
			way := (i + round) % ways
			r.progress.Working(wayNames[way])
			one, err := r.join(ctx, way, round)
			if err != nil {
				return nil, fmt.Errorf("%s, round %d: %w", wayNames[way], round+1, err)
			}
			seconds[way] = append(seconds[way], one.seconds)
			if way == wayTCP {
				cpu, peak = append(cpu, one.cpu), append(peak, one.peak)
			}
			r.progress.Add(1)
		}
	}
	return &Result{
		Blocks: r.o.Blocks, TCPS: median(seconds[wayTCP]), BlocksyncS: median(seconds[wayBlocksync]), Blocksync500S: median(seconds[wayBlocksync500]),
		CPUS: median(cpu), CPUPeak: median(peak),
		BlockBytes: r.o.BlockBytes, ValueBytes: r.o.ValueBytes, Rounds: r.o.Rounds, Machine: harness.ThisMachine(),
	}, nil
}

// median is the middle one, the lower of two.
func median(values []float64) float64 {
	values = slices.Clone(values)
	slices.Sort(values)
	return values[(len(values)-1)/2]
}

func (r *run) home(ctx context.Context, name string) (*runner.Home, error) {
	dir := filepath.Join(r.dir, name)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	return runner.NewHome(ctx, name, dir, r.program, "init", name, "--chain-id", chainID, "--home", dir)
}

func genesisFile(h *runner.Home) string { return filepath.Join(h.Dir, "config", "genesis.json") }

// oldenGenesis moves the time of the chain's beginning into the past.
func oldenGenesis(h *runner.Home) error {
	doc, err := types.GenesisDocFromFile(genesisFile(h))
	if err != nil {
		return err
	}
	doc.GenesisTime = time.Now().Add(-oldGenesis)
	var state map[string]any
	if err := json.Unmarshal(doc.AppState, &state); err != nil {
		return err
	}
	state["open"] = true
	if doc.AppState, err = json.Marshal(state); err != nil {
		return err
	}
	return doc.SaveAs(genesisFile(h))
}

// joined is the figures of one joiner.
type joined struct{ seconds, cpu, peak float64 }

// join has a new node get the chain.
func (r *run) join(ctx context.Context, way, round int) (one joined, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.o.Patience)
	defer cancel()
	joiner, err := r.home(ctx, fmt.Sprintf("joiner-%d-%d", way, round))
	if err != nil {
		return one, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(joiner.Dir)) }()
	processes := runner.NewProcesses(ctx)
	defer func() { err = errors.Join(err, processes.Stop(stopGrace)) }()
	genesis, err := os.ReadFile(genesisFile(r.validator))
	if err != nil {
		return one, err
	}
	if err := os.WriteFile(genesisFile(joiner), genesis, 0o600); err != nil {
		return one, err
	}
	for _, h := range []*runner.Home{r.validator, joiner} {
		err := h.Configure(func(c *cfg.Config) {
			standard := cfg.DefaultConfig()
			c.Consensus = standard.Consensus
			c.Consensus.CreateEmptyBlocks = false // the chain stays as long as it is
			c.P2P.SendRate, c.P2P.RecvRate = standard.P2P.SendRate, standard.P2P.RecvRate
			if way == wayBlocksync500 {
				c.P2P.SendRate, c.P2P.RecvRate = rate500, rate500
			}
			if h == joiner {
				c.P2P.PersistentPeers = r.validator.Peer()
			}
		})
		if err != nil {
			return one, err
		}
		h.Release()
	}
	if _, err := start(processes, r.program, r.validator, true); err != nil {
		return one, err
	}
	height := int64(r.o.Blocks)
	reaches := func(h *runner.Home, height int64) func() bool {
		return func() bool {
			status, err := h.Status(ctx)
			return err == nil && status.Height >= height
		}
	}
	if err := runner.Poll(processes.Context(), "the validator", reaches(r.validator, height+1)); err != nil {
		return one, err
	}
	began := time.Now()
	process, err := start(processes, r.program, joiner, way == wayTCP)
	if err != nil {
		return one, err
	}
	used := watchCPU(ctx, process.Pid())
	err = until(processes.Context(), reaches(joiner, height-1))
	one.seconds = time.Since(began).Seconds()
	one.cpu, one.peak = used()
	return one, err
}

func start(processes *runner.Processes, program string, h *runner.Home, blocks bool) (*runner.Process, error) {
	return processes.Start(runner.Spec{
		Name: h.Name, Path: program, Args: []string{"start", "--home", h.Dir, fmt.Sprintf("--join.blocks=%t", blocks)}, Log: h.Log(),
	})
}

// until polls more often than runner.Poll does.
func until(ctx context.Context, done func() bool) error {
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
	return nil
}
