package joinbench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/transportbench"
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
	// Device is an RDMA device, by name or address: joins by it are measured, too. The program must
	// be built with RDMA.
	Device string
	Guest  bool   // all of it runs in the guest
	Dir    string // parent of the run's folder; "": the system's
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
	case o.Guest && (o.Device != "" || o.Starlingd != ""):
		return errors.New("--guest has a device and a starlingd of its own: leave out --device and --starlingd")
	case o.Patience < time.Second:
		return fmt.Errorf("--patience is %v, it must be 1s or more", o.Patience)
	}
	return nil
}

// Result is medians over the rounds, in seconds from the joiner's start to its RPC server's
// reporting the chain's last block but one.
type Result struct {
	Blocks        int      `json:"blocks"`
	RDMAS         *float64 `json:"rdma_s"` // null: not measured, there was no device
	TCPS          float64  `json:"tcp_s"`
	BlocksyncS    float64  `json:"blocksync_s"`
	Blocksync500S float64  `json:"blocksync_500_s"`
	// CPUS is the joiner's CPU time over TCP, in seconds, and CPUPeak its greatest use in a second,
	// in processors.
	CPUS    float64 `json:"cpu_s"`
	CPUPeak float64 `json:"cpu_peak"`
	// The same by RDMA, and how much of the blocks came by it: the first answers come before there
	// is a path.
	RDMACPUS    *float64 `json:"rdma_cpu_s"`
	RDMACPUPeak *float64 `json:"rdma_cpu_peak"`
	RDMAShare   *float64 `json:"rdma_share"`
	Guest       bool     `json:"guest"`

	BlockBytes int             `json:"block_bytes"`
	ValueBytes int             `json:"value_bytes"`
	Rounds     int             `json:"rounds"`
	Machine    harness.Machine `json:"machine"`
}

// Print writes the result as text.
func (r *Result) Print(w io.Writer) {
	fmt.Fprintf(w, "%d blocks of %d bytes, values of %d, one peer, medians of %d rounds\n\n", r.Blocks, r.BlockBytes, r.ValueBytes, r.Rounds)
	mb := float64(r.Blocks) * float64(r.BlockBytes) / 1e6
	line := func(name string, seconds float64) {
		fmt.Fprintf(w, "%-26s %8.2f s  %7.1f MB/s\n", name, seconds, mb/seconds)
	}
	if r.RDMAS != nil {
		line("over the transport, RDMA", *r.RDMAS)
	}
	line("over the transport, TCP", r.TCPS)
	line("block sync, 5.12 MB/s", r.BlocksyncS)
	line("block sync, 500 MB/s", r.Blocksync500S)
	fmt.Fprintf(w, "\njoiner over TCP: %.2f CPU seconds, at most %.2f processors in a second\n", r.CPUS, r.CPUPeak)
	if r.RDMAS != nil {
		fmt.Fprintf(w, "joiner by RDMA: %.2f CPU seconds, at most %.2f processors in a second; %.0f %% of the blocks came by it\n", *r.RDMACPUS, *r.RDMACPUPeak, 100**r.RDMAShare)
	} else {
		fmt.Fprintln(w, "by RDMA nothing was measured: no device was named (--device), and this is not the guest (--guest)")
	}
	fmt.Fprintf(w, "over TCP / block sync: %.2f (at most 0.5), at 500 MB/s: %.2f (at most 1)\n", r.TCPS/r.BlocksyncS, r.TCPS/r.Blocksync500S)
	if r.Guest {
		fmt.Fprintln(w, "this was the emulated guest: encryption is slow there, which RDMA saves and block sync does not, for a reason that holds nowhere else")
	}
}

// The ways of a joiner.
const (
	wayTCP = iota
	wayBlocksync
	wayBlocksync500
	wayRDMA // only where there is a device
	ways
)

var wayNames = [ways]string{"TCP", "block sync", "block sync 500", "RDMA"}

// run is a run in progress.
type run struct {
	o         Options
	dir       string
	program   string
	address   string // of the device; "": there is none
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
		if o.Guest {
			result, err = inGuest(ctx, o, dir, progress)
			return err
		}
		r := &run{o: o, dir: dir, progress: progress}
		result, err = r.run(ctx)
		return err
	})
	return result, err
}

func (r *run) run(ctx context.Context) (_ *Result, err error) {
	measured := ways - 1
	if r.o.Device != "" {
		if r.address, err = transportbench.Address(r.o.Device); err != nil {
			return nil, err
		}
		measured = ways
	}
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
	r.progress.Begin("join", "joins", measured*r.o.Rounds)
	var all [ways][]joined
	for round := range r.o.Rounds {
		for i := range measured {
			way := (i + round) % measured
			r.progress.Working(wayNames[way])
			one, err := r.join(ctx, way, round)
			if err != nil {
				return nil, fmt.Errorf("%s, round %d: %w", wayNames[way], round+1, err)
			}
			all[way] = append(all[way], one)
			r.progress.Add(1)
		}
	}
	seconds := func(way int) float64 { return median(all[way], func(j joined) float64 { return j.seconds }) }
	cpu := func(way int) float64 { return median(all[way], func(j joined) float64 { return j.cpu }) }
	peak := func(way int) float64 { return median(all[way], func(j joined) float64 { return j.peak }) }
	result := &Result{
		Blocks: r.o.Blocks, TCPS: seconds(wayTCP), BlocksyncS: seconds(wayBlocksync), Blocksync500S: seconds(wayBlocksync500),
		CPUS: cpu(wayTCP), CPUPeak: peak(wayTCP),
		BlockBytes: r.o.BlockBytes, ValueBytes: r.o.ValueBytes, Rounds: r.o.Rounds, Machine: harness.ThisMachine(),
	}
	if len(all[wayRDMA]) > 0 {
		s, c, p := seconds(wayRDMA), cpu(wayRDMA), peak(wayRDMA)
		share := median(all[wayRDMA], func(j joined) float64 { return j.byRDMA }) / (float64(r.o.Blocks) * float64(r.o.BlockBytes))
		result.RDMAS, result.RDMACPUS, result.RDMACPUPeak, result.RDMAShare = &s, &c, &p, &share
	}
	return result, nil
}

// median is the middle one of a figure, the lower of two.
func median(all []joined, of func(joined) float64) float64 {
	var values []float64
	for _, j := range all {
		values = append(values, of(j))
	}
	return harness.Median(values)
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

// joined is the figures of one joiner. byRDMA is bytes.
type joined struct{ seconds, cpu, peak, byRDMA float64 }

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
	serves, err := r.listen(r.validator, way)
	if err != nil {
		return one, err
	}
	for _, h := range []*runner.Home{r.validator, joiner} {
		at, err := r.listen(h, way)
		if err != nil {
			return one, err
		}
		err = h.Configure(func(c *cfg.Config) {
			standard := cfg.DefaultConfig()
			c.Consensus = standard.Consensus
			c.Consensus.CreateEmptyBlocks = false // the chain stays as long as it is
			c.P2P.SendRate, c.P2P.RecvRate = standard.P2P.SendRate, standard.P2P.RecvRate
			if way == wayBlocksync500 {
				c.P2P.SendRate, c.P2P.RecvRate = rate500, rate500
			}
			if h == joiner {
				c.P2P.PersistentPeers = r.validator.PeerAt(serves)
			}
			c.P2P.ListenAddress = "tcp://" + at
		})
		if err != nil {
			return one, err
		}
		h.Release()
	}
	if _, err := r.start(processes, r.validator, true, way == wayRDMA); err != nil {
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
	process, err := r.start(processes, joiner, way == wayTCP || way == wayRDMA, way == wayRDMA)
	if err != nil {
		return one, err
	}
	used := watchCPU(ctx, process.Pid())
	err = until(processes.Context(), reaches(joiner, height-1))
	one.seconds = time.Since(began).Seconds()
	one.cpu, one.peak = used()
	if err == nil && way == wayRDMA {
		one.byRDMA, err = received(ctx, joiner)
	}
	return one, err
}

// listen returns where a node has its p2p, host:port. Paths are between addresses of devices: both
// nodes have the same one, so the device sends to itself.
func (r *run) listen(h *runner.Home, way int) (string, error) {
	p2p := strings.TrimPrefix(h.Peer(), h.ID()+"@")
	if way != wayRDMA {
		return p2p, nil
	}
	_, port, err := net.SplitHostPort(p2p)
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(r.address, port), nil
}

// start starts a node. paths: with paths by RDMA, which the program must be built with.
func (r *run) start(processes *runner.Processes, h *runner.Home, blocks, paths bool) (*runner.Process, error) {
	spec := runner.Spec{
		Name: h.Name, Path: r.program, Args: []string{"start", "--home", h.Dir, fmt.Sprintf("--join.blocks=%t", blocks)}, Log: h.Log(),
		Env: []string{"STARLINGD_STORAGE_MIN_FREE_BYTES=0"}, // the guest's disk is small
	}
	if paths {
		prefix := netip.MustParseAddr(r.address)
		fabric := netip.PrefixFrom(prefix, prefix.BitLen()).String()
		spec.Env = append(spec.Env, "STARLINGD_TRANSPORT_RDMA=required", "STARLINGD_TRANSPORT_RDMA_FABRIC="+fabric)
	}
	return processes.Start(spec)
}

// received is how many bytes a node has got by RDMA. None is an error: a path was to be measured.
func received(ctx context.Context, h *runner.Home) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.Metrics(), nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for _, m := range receivedMetric.FindAllSubmatch(text, -1) {
		n, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	if sum == 0 {
		return 0, fmt.Errorf("%s has got nothing by RDMA: its log, %s, says why", h.Name, h.Log())
	}
	return sum, nil
}

var receivedMetric = regexp.MustCompile(`(?m)^starling_transport_rdma_bytes_total\{[^}]*direction="received"[^}]*\} (\S+)$`)

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
