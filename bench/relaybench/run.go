package relaybench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	rpchttp "github.com/cometbft/cometbft/rpc/client/http"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/transportbench"
	"github.com/starling-kv/starling/e2e/runner"
)

const (
	chainID    = "bench"
	validators = 3

	// A block of blockBytes has 63 transactions of txBytes, and leastParts parts or more.
	blockBytes = 4 << 20
	txBytes    = 64 << 10
	txs        = 63
	leastParts = 60

	// pause is CometBFT's timeout_commit: long enough that a block does not meet the work of the
	// one before.
	pause = 2 * time.Second

	startPatience = 3 * time.Minute
	blockPatience = 10 * time.Minute
	stopGrace     = 20 * time.Second
)

// Settings of transport.relay. Without a device, "all" relays over TLS only.
const (
	relayOff  = "off"
	relayTCP  = "all"
	relayRDMA = "rdma"
)

// defaultRate is CometBFT's of p2p, in bytes per second.
const defaultRate = 5_120_000

// Rates returns those of a run unless others are asked for: the default, and one that limits
// nothing.
func Rates() []int64 { return []int64{defaultRate, 500_000_000} }

// Options are what a run is asked for.
type Options struct {
	Rounds    int     // of all networks
	Blocks    int     // full blocks that each validator proposes in a round, about
	Rates     []int64 // of p2p, in bytes per second
	Dir       string  // for the nodes' homes; "": the system's temporary folder
	Starlingd string  // "": it is built
	// Device is an RDMA device, by name or address: networks that relay by it are measured, too.
	// Starlingd must be built with RDMA.
	Device string
	Guest  bool // all of it runs in the guest
}

// Check returns an error that names the flag that is out of range.
func (o Options) Check() error {
	switch {
	case o.Rounds < 1 || o.Rounds > 100:
		return fmt.Errorf("--rounds is %d, it must be from 1 to 100", o.Rounds)
	case o.Blocks < 1 || o.Blocks > 50:
		return fmt.Errorf("--blocks is %d, it must be from 1 to 50", o.Blocks)
	case len(o.Rates) == 0 || slices.Min(o.Rates) < 1000:
		return fmt.Errorf("--rates is %v, it takes bytes per second, 1000 or more", o.Rates)
	case o.Guest && (o.Device != "" || o.Starlingd != ""):
		return errors.New("--guest has a device and a starlingd of its own: leave out --device and --starlingd")
	}
	return nil
}

// variant is a network to measure.
type variant struct {
	rate    int64
	relay   string // transport.relay
	address string // of the device, for relays by RDMA
	ms, cpu []float64
	sent    map[string]int // what became of relayed messages, by outcome
	again   int            // messages that were relayed to who had them already
	full    int            // full blocks, of which those were, nearly all
}

// Run measures. It reports its progress, and ends its processes in any case.
func Run(ctx context.Context, o Options, progress *harness.Progress) (result *Result, err error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	err = harness.InFolder(ctx, o.Dir, "nodes' homes", progress, func(dir string) error {
		if o.Guest {
			result, err = inGuest(ctx, o, dir, progress)
		} else {
			result, err = run(ctx, o, dir, progress)
		}
		return err
	})
	return result, err
}

func run(ctx context.Context, o Options, dir string, progress *harness.Progress) (*Result, error) {
	relays, address := []string{relayOff, relayTCP}, ""
	if o.Device != "" {
		a, err := transportbench.Address(o.Device)
		if err != nil {
			return nil, err
		}
		relays, address = append(relays, relayRDMA), a
	}
	progress.Begin("build", "programs", 1)
	starlingd, err := program(ctx, o.Starlingd, dir)
	if err != nil {
		return nil, err
	}
	progress.Add(1)
	var variants []*variant
	for _, rate := range o.Rates {
		for _, relay := range relays {
			v := &variant{rate: rate, relay: relay, sent: map[string]int{}}
			if relay == relayRDMA {
				v.address = address
			}
			variants = append(variants, v)
		}
	}
	progress.Begin("blocks", "networks", o.Rounds*len(variants))
	err = harness.InTurns(o.Rounds, variants, func(round int, v *variant) error {
		progress.Working(fmt.Sprintf("%d B/s, relay %s", v.rate, v.relay))
		defer progress.Add(1)
		n := &network{starlingd: starlingd, dir: filepath.Join(dir, fmt.Sprintf("%d-%d-%s", round, v.rate, v.relay)), processes: runner.NewProcesses(ctx)}
		err := n.measure(v, o.Blocks)
		return errors.Join(err, n.stop())
	})
	if err != nil {
		return nil, err
	}
	return newResult(o, variants), nil
}

func program(ctx context.Context, given, dir string) (string, error) {
	if given != "" {
		return filepath.Abs(given)
	}
	root, err := runner.Root(ctx)
	if err != nil {
		return "", err
	}
	out := filepath.Join(dir, "starlingd")
	return out, runner.Build(ctx, root, "./cmd/starlingd", out)
}

// network is three validators.
type network struct {
	starlingd, dir string
	processes      *runner.Processes
	homes          []*runner.Home
}

// measure adds to v the times of full blocks.
func (n *network) measure(v *variant, blocks int) error {
	if err := n.start(v); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(n.processes.Context(), blockPatience)
	defer cancel()
	if err := n.fill(ctx, blocks); err != nil {
		return err
	}
	status, err := n.homes[0].Status(ctx)
	if err != nil {
		return err
	}
	cpu, err := n.cpuSeconds(ctx)
	if err != nil {
		return err
	}
	if err := n.drained(ctx); err != nil {
		return err
	}
	spent, err := n.cpuSeconds(ctx)
	if err != nil {
		return err
	}
	var logs []map[int64]seen
	for _, h := range n.homes {
		if err := v.countRelayed(ctx, h); err != nil {
			return err
		}
		log, err := readLog(h.Log())
		if err != nil {
			return err
		}
		logs = append(logs, log)
	}
	for _, b := range logs[0] {
		if b.parts >= leastParts {
			v.full++
		}
	}
	// The block that is being made meanwhile shares the machine with the clients.
	ms := spreads(logs, status.Height+1, leastParts)
	if len(ms) == 0 {
		return errors.New("no full block was made once the mempools were full: raise --blocks")
	}
	v.ms = append(v.ms, ms...)
	v.cpu = append(v.cpu, (spent-cpu)/float64(len(ms)))
	return nil
}

// start makes homes, starts the validators, and waits until all take part in consensus.
func (n *network) start(v *variant) error {
	ctx, cancel := context.WithTimeout(n.processes.Context(), startPatience)
	defer cancel()
	var peers []string
	for i := range validators {
		name := fmt.Sprintf("validator-%d", i)
		dir := filepath.Join(n.dir, name)
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return err
		}
		h, err := runner.NewHome(ctx, name, dir, n.starlingd, "init", name, "--chain-id", chainID, "--home", dir)
		if err != nil {
			return err
		}
		n.homes = append(n.homes, h)
		p2p := strings.TrimPrefix(h.Peer(), h.ID()+"@")
		if v.address != "" { // paths are between addresses of the device, which sends to itself
			_, port, err := net.SplitHostPort(p2p)
			if err != nil {
				return err
			}
			p2p = net.JoinHostPort(v.address, port)
		}
		err = h.Configure(func(c *cfg.Config) {
			c.Consensus = cfg.DefaultConfig().Consensus
			c.Consensus.TimeoutCommit = pause
			c.Consensus.TimeoutPropose = time.Minute // at p2p's default rate a block needs seconds
			c.Mempool.Broadcast, c.Mempool.Recheck = false, false
			c.TxIndex.Indexer = "null"
			// It limits the time of all answers of the RPC server. In the guest, a transaction that
			// waits while a block is committed took longer than the usual 10 s.
			c.RPC.TimeoutBroadcastTxCommit = blockPatience
			c.P2P.SendRate, c.P2P.RecvRate = v.rate, v.rate
			c.P2P.PersistentPeers = strings.Join(peers, ",")
			c.P2P.ListenAddress = "tcp://" + p2p
		})
		if err != nil {
			return err
		}
		peers = append(peers, h.PeerAt(p2p))
	}
	doc, err := runner.Genesis(n.homes, nil, chainID, struct {
		Open   bool     `json:"open"`
		Admins []string `json:"admins"`
	}{true, []string{}})
	if err != nil {
		return err
	}
	doc.ConsensusParams.Block.MaxBytes = blockBytes
	for _, h := range n.homes {
		if err := doc.SaveAs(filepath.Join(h.Dir, "config", "genesis.json")); err != nil {
			return err
		}
		h.Release()
		_, err := n.processes.Start(runner.Spec{
			Name: h.Name, Path: n.starlingd, Args: []string{"start", "--home", h.Dir}, Log: h.Log(),
			Env: v.environment(),
		})
		if err != nil {
			return err
		}
	}
	for _, h := range n.homes {
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

func (v *variant) environment() []string {
	// The guest's disk is small.
	env := []string{"STARLINGD_TRANSPORT_RELAY=" + v.relay, "STARLINGD_STORAGE_MIN_FREE_BYTES=0"}
	if v.address == "" {
		return env
	}
	addr := netip.MustParseAddr(v.address)
	return append(env, "STARLINGD_TRANSPORT_RDMA=required", "STARLINGD_TRANSPORT_RDMA_FABRIC="+netip.PrefixFrom(addr, addr.BitLen()).String())
}

// fill gives each validator transactions for some full blocks.
func (n *network) fill(ctx context.Context, blocks int) error {
	errs := make([]error, len(n.homes))
	var wg sync.WaitGroup
	for i, h := range n.homes {
		wg.Go(func() { errs[i] = fillOne(ctx, h, i, blocks*txs) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func fillOne(ctx context.Context, h *runner.Home, node, count int) error {
	client, err := rpchttp.New(h.RPC(), "/websocket")
	if err != nil {
		return err
	}
	for k := range count {
		tx := fmt.Sprintf("key-%d-%d=", node, k)
		res, err := client.BroadcastTxSync(ctx, types.Tx(tx+strings.Repeat("x", txBytes-len(tx))))
		if err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
		if res.Code != 0 {
			return fmt.Errorf("%s refuses a transaction: %s", h.Name, res.Log)
		}
	}
	return nil
}

// drained waits until all that was sent is in blocks.
func (n *network) drained(ctx context.Context) error {
	for _, h := range n.homes {
		client, err := rpchttp.New(h.RPC(), "/websocket")
		if err != nil {
			return err
		}
		err = runner.Poll(ctx, h.Name+" to have proposed what it was sent", func() bool {
			res, err := client.NumUnconfirmedTxs(ctx)
			return err == nil && res.Total == 0
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// cpuSeconds is the CPU time of all validators since they were started.
func (n *network) cpuSeconds(ctx context.Context) (sum float64, err error) {
	for _, h := range n.homes {
		values, err := h.Scrape(ctx)
		if err != nil {
			return 0, err
		}
		sum += values["process_cpu_seconds_total"]
	}
	return sum, nil
}

var relayedMetric = regexp.MustCompile(`(?m)^starling_relay_(sent|received)_total\{kind="[a-z]+",outcome="([a-z]+)"\} (\d+)$`)

// countRelayed adds to v what a node has relayed, and got more than once.
func (v *variant) countRelayed(ctx context.Context, h *runner.Home) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.Metrics(), nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req) //nolint:gosec // the run's own node
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	for _, m := range relayedMetric.FindAllSubmatch(text, -1) {
		count := int(number(string(m[3])))
		switch outcome := string(m[2]); {
		case string(m[1]) == "sent":
			v.sent[outcome] += count
		case outcome == "again":
			v.again += count
		}
	}
	return nil
}

// stop ends all nodes and removes their homes.
func (n *network) stop() error {
	err := n.processes.Stop(stopGrace)
	for _, h := range n.homes {
		h.Release()
	}
	return errors.Join(err, os.RemoveAll(n.dir))
}
