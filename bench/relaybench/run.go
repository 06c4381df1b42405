package relaybench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	rpchttp "github.com/cometbft/cometbft/rpc/client/http"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/bench/guest"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/network"
	"github.com/starling-kv/starling/bench/transportbench"
	"github.com/starling-kv/starling/e2e/runner"
)

const (
	validators = 3
	partBytes  = int(types.BlockPartSizeBytes)

	// defaultBytes is the size of blocks for which the targets are set. The limit of blocks is not
	// below it: a genesis whose limit does not fit the largest transaction is invalid.
	defaultBytes = 4 << 20
	// The smallest blocks have three transactions.
	leastBytes, mostBytes = 256 << 10, 16 << 20

	// pause is CometBFT's timeout_commit. It is long enough that the work for one block has ended
	// before the next.
	pause = 2 * time.Second

	blockPatience = 10 * time.Minute
)

// Values of transport.relay. Without an RDMA device, "all" relays over TLS only.
const (
	relayOff  = "off"
	relayTCP  = "all"
	relayRDMA = "rdma"
)

// defaultRate is CometBFT's default p2p rate, in bytes per second.
const defaultRate = 5_120_000

// shape says what a full block of a size has.
type shape struct {
	bytes int // limit
	txs   int // of partBytes, leaving room for the header and the commit
	parts int // with the header and the commit in the last one
}

func shapeOf(bytes int) shape {
	// A block without one of its transactions has one part less.
	s := shape{bytes: bytes, txs: bytes/partBytes - 1}
	s.parts = s.txs + 1
	return s
}

// Options configure a run.
type Options struct {
	guest.Target
	Rounds     int   // rounds over all networks
	Blocks     int   // full blocks that each validator proposes in a round, approximately
	BlockBytes []int // sizes of blocks
	Rates      []int // p2p rates in bytes per second
	Sends      int   // blocks of each size that are sent without consensus
	Starlingd  string
}

// Flags adds the flags of relay.
func (o *Options) Flags(f *harness.Flags) {
	f.Int(&o.Rounds, "rounds", 3, 1, 100, "number of rounds; in each, every network makes blocks")
	f.Int(&o.Blocks, "blocks", 5, 1, 50, "number of full blocks for which each validator gets transactions in a round")
	f.Sizes(&o.BlockBytes, "block-bytes", []int{defaultBytes}, leastBytes, mostBytes, "sizes of blocks")
	f.Ints(&o.Rates, "rates", []int{defaultRate, 500_000_000}, 1000, math.MaxInt, "p2p rates in bytes per second")
	f.Int(&o.Sends, "sends", 20, 1, 10_000, "number of blocks of each size that are sent without consensus")
	f.Program(&o.Starlingd, "starlingd")
	o.Target.Flags(f, &o.Starlingd)
}

// variant is a network under measurement.
type variant struct {
	shape
	rate    int64
	relay   string // transport.relay
	address string // of the RDMA device, for relaying over RDMA
	ms, cpu []float64
	sent    map[string]int // relayed messages, by outcome
	again   int            // duplicates: messages relayed to nodes that already had them
	full    int            // number of full blocks, which cause nearly all of these messages
}

// Run runs the benchmark. It reports to progress, and always stops its processes.
func Run(ctx context.Context, o Options, progress *harness.Progress) (result *Result, err error) {
	err = harness.InFolder(ctx, progress, func(dir string) error {
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
	relays, at := []string{relayOff, relayTCP}, ends{sender: loopback, receivers: loopback}
	if o.Devices != "" {
		var err error
		if at.receivers, at.sender, err = transportbench.Addresses(o.Devices); err != nil {
			return nil, err
		}
		at.rdma, relays = true, append(relays, relayRDMA)
	}
	starlingd, err := o.Target.Starlingd(ctx, o.Starlingd, dir, progress)
	if err != nil {
		return nil, err
	}
	var variants []*variant
	for _, bytes := range o.BlockBytes {
		for _, rate := range o.Rates {
			for _, relay := range relays {
				v := &variant{shape: shapeOf(bytes), rate: int64(rate), relay: relay, sent: map[string]int{}}
				if relay == relayRDMA {
					v.address = at.receivers
				}
				variants = append(variants, v)
			}
		}
	}
	progress.Begin("blocks", "networks", o.Rounds*len(variants))
	err = harness.InTurns(o.Rounds, variants, func(round int, v *variant) error {
		progress.Working(fmt.Sprintf("%s, %d B/s, relay %s", harness.SizeText(v.bytes), v.rate, v.relay))
		defer progress.Add(1)
		n, err := v.start(ctx, starlingd, filepath.Join(dir, fmt.Sprintf("%d-%d-%d-%s", round, v.bytes, v.rate, v.relay)), o.Blocks)
		if err != nil {
			return err
		}
		return errors.Join(v.measure(n, o.Blocks), n.Stop())
	})
	if err != nil {
		return nil, err
	}
	result := newResult(o, variants)
	result.Sends, err = sends(ctx, o, at, progress)
	return result, err
}

// measure adds the times of full blocks to v.
func (v *variant) measure(n *network.Network, blocks int) error {
	ctx, cancel := context.WithTimeout(n.Context(), blockPatience)
	defer cancel()
	before, batches := len(v.ms), 1
	if v.bytes < defaultBytes { // the limit is higher: a batch is a block of each validator
		blocks, batches = 1, blocks
	}
	var logs []map[int64]seen
	for batch := range batches {
		var err error
		if logs, err = v.batch(ctx, n, batch, blocks); err != nil {
			return err
		}
	}
	if len(v.ms) == before {
		return errors.New("no full block was made after the mempools were full: raise --blocks")
	}
	for _, b := range logs[0] {
		if b.parts >= v.parts {
			v.full++
		}
	}
	for _, h := range n.Validators {
		if err := v.countRelayed(ctx, h); err != nil {
			return err
		}
	}
	return nil
}

// batch sends each validator the transactions of some full blocks, and adds the times of those that
// are made once all have their transactions. It returns the nodes' logs.
func (v *variant) batch(ctx context.Context, n *network.Network, batch, blocks int) (logs []map[int64]seen, err error) {
	if err := v.fill(ctx, n, batch, blocks); err != nil {
		return nil, err
	}
	status, err := n.Validators[0].Status(ctx)
	if err != nil {
		return nil, err
	}
	// The block in progress shares the machine with the clients, so it does not count.
	first := status.Height + 1
	if err := n.Reach(ctx, first); err != nil {
		return nil, err
	}
	cpu, err := n.CPUSeconds(ctx)
	if err != nil {
		return nil, err
	}
	if err := drained(ctx, n); err != nil {
		return nil, err
	}
	spent, err := n.CPUSeconds(ctx)
	if err != nil {
		return nil, err
	}
	for _, h := range n.Validators {
		log, err := readLog(h.Log())
		if err != nil {
			return nil, err
		}
		logs = append(logs, log)
	}
	if ms := spreads(logs, first, v.parts); len(ms) > 0 {
		v.ms = append(v.ms, ms...)
		v.cpu = append(v.cpu, (spent-cpu)/worth(logs[0], first))
	}
	return logs, nil
}

// start starts a network.
func (v *variant) start(ctx context.Context, starlingd, dir string, blocks int) (*network.Network, error) {
	return network.Start(ctx, network.Options{
		Program: starlingd, AppState: network.Open, Dir: dir, Validators: validators, BlockBytes: int64(max(v.bytes, defaultBytes)), Env: v.environment(),
		Host: v.address, // RDMA channels connect device addresses; the device sends to itself
		Edit: func(c *cfg.Config) {
			c.Consensus = cfg.DefaultConfig().Consensus
			c.Consensus.TimeoutCommit = pause
			c.Consensus.TimeoutPropose = time.Minute // a block takes seconds at p2p's default rate
			c.Mempool.Broadcast, c.Mempool.Recheck = false, false
			c.Mempool.Size = max(c.Mempool.Size, blocks*v.txs)
			c.TxIndex.Indexer = "null"
			// This limits the time of all responses of the RPC server. In the VM, a transaction
			// that waited for the commit of a block took longer than the default of 10 s.
			c.RPC.TimeoutBroadcastTxCommit = blockPatience
			c.P2P.SendRate, c.P2P.RecvRate = v.rate, v.rate
		},
	})
}

func (v *variant) environment() []string {
	// The VM's disk is small.
	env := []string{"STARLINGD_TRANSPORT_RELAY=" + v.relay, "STARLINGD_DISK_MIN_FREE_BYTES=0"}
	if v.address == "" {
		return env
	}
	return append(env, network.RDMA(v.address)...)
}

// fill sends each validator the transactions of some full blocks. Each batch has other ones.
func (s shape) fill(ctx context.Context, n *network.Network, batch, blocks int) error {
	errs := make([]error, len(n.Validators))
	var wg sync.WaitGroup
	for i, h := range n.Validators {
		wg.Go(func() { errs[i] = s.fillOne(ctx, h, fmt.Sprintf("key-%d-%d", batch, i), blocks*s.txs) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (s shape) fillOne(ctx context.Context, h *runner.Home, keys string, count int) error {
	client, err := rpchttp.New(h.RPC(), "/websocket")
	if err != nil {
		return err
	}
	for k := range count {
		tx := fmt.Sprintf("%s-%d=", keys, k)
		res, err := client.BroadcastTxSync(ctx, types.Tx(tx+strings.Repeat("x", partBytes-len(tx))))
		if err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
		if res.Code != 0 {
			return fmt.Errorf("%s rejected a transaction: %s", h.Name, res.Log)
		}
	}
	return nil
}

// drained waits until all transactions are in blocks.
func drained(ctx context.Context, n *network.Network) error {
	for _, h := range n.Validators {
		client, err := rpchttp.New(h.RPC(), "/websocket")
		if err != nil {
			return err
		}
		err = runner.Poll(ctx, h.Name+" to propose all its transactions", func() bool {
			res, err := client.NumUnconfirmedTxs(ctx)
			return err == nil && res.Total == 0
		})
		if err != nil {
			return err
		}
	}
	return nil
}

var relayedMetric = regexp.MustCompile(`(?m)^starling_relay_(sent|received)_total\{kind="[a-z]+",outcome="([a-z]+)"\} (\d+)$`)

// countRelayed adds the messages that a node relayed, and the duplicates that it received, to v.
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
