package joinbench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/bench/guest"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/network"
	"github.com/starling-kv/starling/bench/transportbench"
	"github.com/starling-kv/starling/e2e/runner"
)

// Options configure a run.
type Options struct {
	guest.Target
	Blocks     int
	BlockBytes int // per block
	ValueBytes int // per transaction
	Rounds     int
	Seed       uint64
	Patience   time.Duration // for one join
	Profile    bool
	Starlingd  string // path of a built program
}

// Flags adds the flags of join.
func (o *Options) Flags(f *harness.Flags) {
	f.Int(&o.Blocks, "blocks", 500, 2, 100_000, "number of blocks in the chain")
	f.Int(&o.BlockBytes, "block-bytes", 1<<20, 1<<10, 2<<20, "bytes of values per block")
	f.Int(&o.ValueBytes, "value-bytes", 64<<10, 16, 2<<20, "bytes per value, at most --block-bytes")
	f.Int(&o.Rounds, "rounds", 3, 1, 100, "number of joins over each path; the result has their medians")
	f.Seed(&o.Seed)
	f.Time(&o.Patience, "patience", 20*time.Minute, time.Second, 24*time.Hour, "time limit for one join")
	f.BoolVar(&o.Profile, "profile", false, "take a CPU profile in one more join over each path, by component (not with --guest)")
	f.Program(&o.Starlingd, "starlingd")
	o.Target.Flags(f, &o.Starlingd)
	f.Also(func() error {
		switch {
		case o.Profile && o.Guest:
			return errors.New("--profile and --guest exclude each other: profiles in the emulated VM are meaningless")
		case o.ValueBytes > o.BlockBytes:
			return fmt.Errorf("--value-bytes is %d, it must be at most --block-bytes", o.ValueBytes)
		}
		return nil
	})
}

// Result has medians over the rounds, in seconds from the joiner's start until its RPC server
// reports the second-to-last block of the chain.
type Result struct {
	Blocks        int      `json:"blocks"`
	RDMAS         *float64 `json:"rdma_s"` // null: not measured, because there is no device
	TCPS          float64  `json:"tcp_s"`
	BlocksyncS    float64  `json:"blocksync_s"`
	Blocksync500S float64  `json:"blocksync_500_s"`
	// CPUS is the joiner's CPU time over TCP, in seconds. CPUPeak is its highest use in a second,
	// in processors.
	CPUS    float64 `json:"cpu_s"`
	CPUPeak float64 `json:"cpu_peak"`
	// The same over RDMA, and the share of the blocks that arrived over it: the first responses
	// arrive before the RDMA channel is up.
	RDMACPUS    *float64 `json:"rdma_cpu_s"`
	RDMACPUPeak *float64 `json:"rdma_cpu_peak"`
	RDMAShare   *float64 `json:"rdma_share"`
	Guest       bool     `json:"guest"`
	Ways        []Way    `json:"ways"`

	BlockBytes int              `json:"block_bytes"`
	ValueBytes int              `json:"value_bytes"`
	Rounds     int              `json:"rounds"`
	Machine    harness.Machine  `json:"machine"`
	Targets    []harness.Target `json:"targets"`
}

// Way is the joiner's use of the CPU over one path. The figures are medians over the rounds.
type Way struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	CPUS    float64 `json:"cpu_s"`
	KernelS float64 `json:"kernel_cpu_s"` // part of CPUS: system calls, so the network and files
	Peak    float64 `json:"cpu_peak"`     // highest use in a second, in processors
	// Samples are those of the round with the median of Seconds.
	Samples []harness.CPUSample `json:"cpu_samples"`
	// Components are those of a further join, with --profile.
	Components []Component `json:"components,omitempty"`
}

// Average returns the use of the CPU in processors.
func (w Way) Average() float64 { return harness.Ratio(w.CPUS, w.Seconds) }

// Way returns the path with a name, or nil if it was not measured.
func (r *Result) Way(name string) *Way {
	for i := range r.Ways {
		if r.Ways[i].Name == name {
			return &r.Ways[i]
		}
	}
	return nil
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
	fmt.Fprintln(w)
	for _, way := range r.Ways {
		fmt.Fprintf(w, "joiner, %s: %.2f CPU seconds, %.2f of them in the kernel; at most %.2f processors in a second\n", way.Name, way.CPUS, way.KernelS, way.Peak)
	}
	r.printComponents(w)
	if r.RDMAS != nil {
		fmt.Fprintf(w, "%.0f %% of the blocks came over RDMA\n", 100**r.RDMAShare)
	} else {
		fmt.Fprintln(w, "RDMA was not measured: it needs --devices or --guest")
	}
	if r.Guest {
		fmt.Fprintln(w, "Measured in the emulated VM, where encryption is slow, unlike on hardware. RDMA avoids encryption, block sync does not.")
	}
	harness.PrintTargets(w, "500 blocks of 1 MiB", r.Targets)
}

// judge sets the targets.
func (r *Result) judge() {
	r.Targets = []harness.Target{
		harness.AtMost("a join over TCP at most half of the time of block sync", 0.5, harness.Ratio(r.TCPS, r.BlocksyncS)),
		harness.AtMost("a join over TCP at most the time of block sync at 500 MB/s", 1, harness.Ratio(r.TCPS, r.Blocksync500S)),
	}
}

// Paths over which a joiner fetches blocks.
const (
	wayTCP = iota
	wayBlocksync
	wayBlocksync500
	wayRDMA // only with a device
	ways
)

// Names of the paths in a result.
const (
	TCP          = "transport, TCP"
	BlockSync    = "block sync, 5.12 MB/s"
	BlockSync500 = "block sync, 500 MB/s"
	RDMA         = "transport, RDMA"
)

var wayNames = [ways]string{TCP, BlockSync, BlockSync500, RDMA}

// run is the state of one run.
type run struct {
	o         Options
	dir       string
	program   string
	serving   string // address of the validator's RDMA device; "": none
	joining   string // of the joiner's
	validator *runner.Home
	progress  *harness.Progress
}

const (
	askEvery = 50 * time.Millisecond
	rate500  = 500_000_000
	// oldGenesis makes the chain's blocks old, so that joiners look for peers ahead of them.
	oldGenesis = 24 * time.Hour
)

// Run runs the benchmark. It always stops its processes.
func Run(ctx context.Context, o Options, progress *harness.Progress) (result *Result, err error) {
	err = harness.InFolder(ctx, progress, func(dir string) error {
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
	if r.o.Devices != "" {
		if r.serving, r.joining, err = transportbench.Addresses(r.o.Devices); err != nil {
			return nil, err
		}
		measured = ways
	}
	if r.program, err = r.o.Target.Starlingd(ctx, r.o.Starlingd, r.dir, r.progress); err != nil {
		return nil, err
	}
	if r.validator, err = r.home(ctx, "validator"); err != nil {
		return nil, err
	}
	if err := oldenGenesis(r.validator); err != nil {
		return nil, err
	}
	r.progress.Begin("chain", "blocks", r.o.Blocks)
	if err := makeChain(ctx, r.validator.Dir, r.o, func() { r.progress.Add(1) }); err != nil {
		return nil, fmt.Errorf("making the chain: %w", err)
	}
	profiles := 0
	if r.o.Profile {
		profiles = measured
	}
	r.progress.Begin("join", "joins", measured*r.o.Rounds+profiles)
	var all [ways][]joined
	for round := range r.o.Rounds {
		for i := range measured {
			way := (i + round) % measured
			r.progress.Working(wayNames[way])
			one, err := r.join(ctx, way, round, false)
			if err != nil {
				return nil, fmt.Errorf("%s, round %d: %w", wayNames[way], round+1, err)
			}
			all[way] = append(all[way], one)
			r.progress.Add(1)
		}
	}
	seconds := func(way int) float64 { return harness.MedianOf(all[way], func(j joined) float64 { return j.seconds }) }
	result := &Result{
		Blocks: r.o.Blocks, TCPS: seconds(wayTCP), BlocksyncS: seconds(wayBlocksync), Blocksync500S: seconds(wayBlocksync500),
		BlockBytes: r.o.BlockBytes, ValueBytes: r.o.ValueBytes, Rounds: r.o.Rounds, Machine: harness.ThisMachine(),
	}
	result.judge()
	for way := range measured {
		result.Ways = append(result.Ways, newWay(wayNames[way], all[way]))
	}
	for way := range profiles {
		r.progress.Working("profile of " + wayNames[way])
		one, err := r.join(ctx, way, r.o.Rounds, true)
		if err != nil {
			return nil, fmt.Errorf("%s, with a profile: %w", wayNames[way], err)
		}
		result.Ways[way].Components = one.components
		r.progress.Add(1)
	}
	result.CPUS, result.CPUPeak = result.Ways[wayTCP].CPUS, result.Ways[wayTCP].Peak
	if measured > wayRDMA {
		way := result.Ways[wayRDMA]
		share := harness.MedianOf(all[wayRDMA], func(j joined) float64 { return j.byRDMA }) / (float64(r.o.Blocks) * float64(r.o.BlockBytes))
		result.RDMAS, result.RDMACPUS, result.RDMACPUPeak, result.RDMAShare = &way.Seconds, &way.CPUS, &way.Peak, &share
	}
	return result, nil
}

func (r *run) home(ctx context.Context, name string) (*runner.Home, error) {
	return network.Home(ctx, r.program, name, r.dir)
}

// oldenGenesis moves the genesis time of the chain into the past.
func oldenGenesis(h *runner.Home) error {
	doc, err := types.GenesisDocFromFile(network.GenesisFile(h))
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
	return doc.SaveAs(network.GenesisFile(h))
}

// joined has the figures of one joiner. byRDMA is the bytes received over RDMA.
type joined struct {
	seconds, byRDMA float64
	samples         []harness.CPUSample
	components      []Component // of a join with a profile, which has nothing else
}

// used returns the joiner's CPU time.
func (j joined) used() (last harness.CPUSample) {
	if n := len(j.samples); n > 0 {
		last = j.samples[n-1]
	}
	return last
}

// newWay returns the figures of a path from its rounds.
func newWay(name string, rounds []joined) Way {
	sorted := slices.SortedFunc(slices.Values(rounds), func(a, b joined) int { return cmp.Compare(a.seconds, b.seconds) })
	return Way{
		Name: name, Seconds: harness.MedianOf(rounds, func(j joined) float64 { return j.seconds }),
		CPUS:    harness.MedianOf(rounds, func(j joined) float64 { return j.used().Total() }),
		KernelS: harness.MedianOf(rounds, func(j joined) float64 { return j.used().Kernel }),
		Peak:    harness.MedianOf(rounds, func(j joined) float64 { return harness.PeakCPU(j.samples, 1) }),
		Samples: sorted[(len(sorted)-1)/2].samples,
	}
}

// join makes a new node fetch the chain. With profile, the node is a child of this program.
func (r *run) join(ctx context.Context, way, round int, profile bool) (one joined, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.o.Patience)
	defer cancel()
	joiner, err := r.home(ctx, fmt.Sprintf("joiner-%d-%d", way, round))
	if err != nil {
		return one, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(joiner.Dir)) }()
	processes := runner.NewProcesses(ctx)
	defer func() { err = errors.Join(err, processes.Stop(network.StopGrace)) }()
	if err := network.CopyGenesis(r.validator, joiner); err != nil {
		return one, err
	}
	serves, err := r.listen(r.validator, way)
	if err != nil {
		return one, err
	}
	if way == wayRDMA && r.joining != r.serving {
		relay, at, err := network.Delay([]network.Hop{{From: joiner, To: r.validator, Target: serves, Host: r.joining, Transport: true}})
		if err != nil {
			return one, err
		}
		defer relay.Close()
		serves = at[0]
	}
	for _, h := range []*runner.Home{r.validator, joiner} {
		at, err := r.listen(h, way)
		if err != nil {
			return one, err
		}
		err = h.Configure(func(c *cfg.Config) {
			standard := cfg.DefaultConfig()
			c.Consensus = standard.Consensus
			c.Consensus.CreateEmptyBlocks = false // the chain must not grow
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
	if _, err := r.start(processes, r.validator, true, way); err != nil {
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
	if profile {
		one.components, err = profileJoin(processes.Context(), profileBegin{Dir: joiner.Dir, CatchUp: overTransport(way), Fabric: r.fabric(way)}, height-1)
		return one, err
	}
	began := time.Now()
	process, err := r.start(processes, joiner, overTransport(way), way)
	if err != nil {
		return one, err
	}
	used := harness.WatchCPU(ctx, process.Pid())
	err = until(processes.Context(), reaches(joiner, height-1))
	one.seconds = time.Since(began).Seconds()
	one.samples = used()
	if err == nil && way == wayRDMA {
		one.byRDMA, err = received(ctx, joiner)
	}
	return one, err
}

// overTransport reports whether the joiner fetches blocks over the transport.
func overTransport(way int) bool { return way == wayTCP || way == wayRDMA }

// listen returns the p2p address of a node, host:port. Each side's end of a connection has the
// address of its RDMA device. With one device, both have the same address, and the device sends to
// itself. With two, a relay at the joiner's address takes the joiner's connections to the
// validator: the kernel would connect two local addresses from the one that is dialed. Data over
// RDMA bypasses the relay.
func (r *run) listen(h *runner.Home, way int) (string, error) {
	switch {
	case way != wayRDMA:
		return network.P2P(h, "")
	case h == r.validator:
		return network.P2P(h, r.serving)
	}
	return network.P2P(h, r.joining)
}

// fabric returns the addresses with which a node may have RDMA channels; none without RDMA.
func (r *run) fabric(way int) []string {
	if way != wayRDMA {
		return nil
	}
	return slices.Compact([]string{r.serving, r.joining})
}

// start starts a node. Over RDMA, the program must be built with it.
func (r *run) start(processes *runner.Processes, h *runner.Home, blocks bool, way int) (*runner.Process, error) {
	spec := runner.Spec{
		Name: h.Name, Path: r.program, Args: []string{"start", "--home", h.Dir, fmt.Sprintf("--catch_up.enabled=%t", blocks)}, Log: h.Log(),
		Env: []string{"STARLINGD_DISK_MIN_FREE_BYTES=0"}, // the VM's disk is small
	}
	if way == wayRDMA {
		spec.Env = append(spec.Env, network.RDMA(r.fabric(way)...)...)
	}
	return processes.Start(spec)
}

// received returns the number of bytes a node received over RDMA. It fails if there are none,
// because the measurement was of RDMA.
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
		return 0, fmt.Errorf("%s received nothing over RDMA; see its log, %s", h.Name, h.Log())
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
