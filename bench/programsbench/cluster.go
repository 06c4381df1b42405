package programsbench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/starling-kv/starling/api"
	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/network"
	"github.com/starling-kv/starling/client"
	e2e "github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/tx"
)

const (
	validators   = 4
	storageNodes = 4
	// ranges of keys, with two storage nodes each. The boundary divides the token's balances.
	ranges = 2
	// blockPause is the time between a block and the next height of consensus.
	blockPause = 200 * time.Millisecond
	// waitMS is how long a node waits for the execution of transactions, callPatience a client for
	// the node.
	waitMS       = 4000
	callPatience = time.Minute
	// prepareAtOnce is the number of transactions of account 0 in flight.
	prepareAtOnce = 8
	busyPause     = 50 * time.Millisecond
	// A refused simulation is repeated so often, after a pause.
	simulations     = 5
	simulationPause = time.Second
)

// Modes of a network, as in NetRow.
const (
	ModeSharded = "sharded"
	ModeLocal   = "local" // validators with the whole state
	ModeWAN     = "sharded, delayed"
)

// cluster is a network of validators, and the clients that send transactions to it. It implements
// chain.
type cluster struct {
	mode  string
	net   *network.Network
	bank  *bank
	nodes []api.NodeClient // of the validators
	conns []*grpc.ClientConn
	// gateways are sharded nodes without a vote. entries are the nodes to which clients send, the
	// validators by default.
	gateways []*e2e.Home
	entries  []api.NodeClient

	pending [][]byte // of account 0, not sent yet
}

// startCluster starts a network, and prepares its chain.
func startCluster(ctx context.Context, o Options, mode, program, dir string, progress *harness.Progress) (_ *cluster, err error) {
	o.Keys = o.NetKeys
	b, err := newBank(ctx, o)
	if err != nil {
		return nil, err
	}
	state := b.appState(o.Workers)
	state["snapshot_interval"] = 100
	no := network.Options{
		Program: program, Dir: dir, Validators: validators, AppState: state, GRPC: true,
		Edit: func(c *cfg.Config) {
			c.Consensus.TimeoutCommit = blockPause
			c.LogLevel = "*:error"
		},
	}
	if mode == ModeWAN {
		no.Delay, no.StorageDelay = o.Delay, o.Delay
	}
	if mode != ModeLocal {
		no.Env = []string{fmt.Sprintf("STARLINGD_STATE_RETAIN_DEPTH=%d", o.Retain)}
		no.Sharded = network.Sharded{
			Nodes: storageNodes, Ranges: ranges,
			First: func(int) string { return fmt.Sprintf("0x%x", b.slot(append([]byte{0x80}, make([]byte, 19)...))) },
		}
	}
	progress.Begin("start", "nodes", 1)
	progress.Working(mode)
	c := &cluster{mode: mode, bank: b}
	if c.net, err = network.Start(ctx, no); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.stop())
		}
	}()
	for _, address := range c.net.Endpoints() {
		if err := c.dial(address); err != nil {
			return nil, err
		}
	}
	c.entries = c.nodes
	progress.Begin("prepare", "transactions", b.steps(o.Workers))
	progress.Working(mode)
	return c, b.prepare(c.net.Context(), c, o.Workers, progress.Add)
}

// dial opens a connection to a node's gRPC endpoint.
func (c *cluster) dial(address string) error {
	conn, err := grpc.NewClient("passthrough:///"+strings.TrimPrefix(address, "grpc://"),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		return err
	}
	c.conns = append(c.conns, conn)
	c.nodes = append(c.nodes, api.NewNodeClient(conn))
	return nil
}

func (c *cluster) stop() error {
	for _, conn := range c.conns {
		_ = conn.Close() // nothing is in flight
	}
	return c.net.Stop()
}

func (c *cluster) submit(ctx context.Context, operations ...tx.Operation) error {
	raw, err := c.bank.accounts[0].sign(operations...)
	if err != nil {
		return err
	}
	if c.pending = append(c.pending, raw); len(c.pending) < prepareAtOnce {
		return nil
	}
	return c.flush(ctx)
}

func (c *cluster) flush(ctx context.Context) error {
	results, err := send(ctx, c.nodes[0], c.pending)
	if err != nil {
		return err
	}
	for _, r := range results {
		if r.GetError() != "" || r.GetCode() != 0 {
			return fmt.Errorf("preparing the chain: transaction %X failed: %s%s", r.GetHash(), r.GetError(), r.GetLog())
		}
	}
	c.pending = nil
	return nil
}

// send passes transactions of one account to a node, and waits until all that it takes are
// executed.
func send(ctx context.Context, node api.NodeClient, txs [][]byte) ([]*api.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	response, err := node.Submit(ctx, &api.SubmitRequest{Transactions: txs, WaitMs: waitMS})
	if err != nil {
		return nil, err
	}
	results := response.GetResults()
	for i, r := range results {
		for r.GetError() == "" && r.GetCode() == 0 && r.GetHeight() == 0 {
			found, err := node.GetTransaction(ctx, &api.GetTransactionRequest{Hash: r.GetHash(), WaitMs: waitMS})
			if ctx.Err() != nil {
				return nil, fmt.Errorf("a transaction was not executed within %s: %w", callPatience, errors.Join(ctx.Err(), err))
			}
			if err == nil { // otherwise it is not executed yet
				results[i], r = found.GetResult(), found.GetResult()
			}
		}
	}
	return results, nil
}

func (c *cluster) height(ctx context.Context) (int64, error) {
	status, err := c.nodes[0].Status(ctx, &api.StatusRequest{})
	return status.GetLatestHeight(), err
}

func (c *cluster) reach(ctx context.Context, height int64) error {
	return e2e.Poll(ctx, fmt.Sprintf("block %d", height), func() bool {
		at, err := c.height(ctx)
		return err == nil && at > height
	})
}

func (c *cluster) simulate(ctx context.Context, account []byte, operation tx.Operation) (*client.Simulation, error) {
	body := tx.Body{Account: account, Operations: []tx.Operation{operation}}
	raw, err := body.Marshal()
	if err != nil {
		return nil, err
	}
	var response *api.QueryResponse
	// A sharded node refuses a query whose nodes do not arrive in time.
	for try := 0; ; try++ {
		response, err = c.nodes[0].Query(ctx, &api.QueryRequest{Path: app.PathSimulate, Data: raw})
		if err == nil && response.GetCode() != 0 {
			err = errors.New(response.GetLog())
		}
		if err == nil {
			return simulationOf(response.GetValue(), response.GetHeight())
		}
		if try == simulations || sleep.For(ctx, simulationPause) != nil {
			return nil, err
		}
	}
}

// tally counts what became of transactions.
type tally struct {
	mu        sync.Mutex
	done      int
	transfers int // executed, done or not
	codes     map[uint32]int
	refused   int // by mempools; they are sent again
	// Of the phase reads: moves whose first prediction was wrong, and those that succeeded later.
	retried, recovered int
}

// sender sends transactions of a worker, and waits until they are executed. b draws them.
type sender func(ctx context.Context, b *bank, worker int, t *tally) error

// load sends transactions for a time, from all workers.
func (c *cluster) load(ctx context.Context, o Options, round uint64, send sender) (*tally, error) {
	t := &tally{codes: map[uint32]int{}}
	until := time.Now().Add(time.Duration(o.Seconds) * time.Second)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var workers sync.WaitGroup
	for i := range o.Workers {
		w := *c.bank                                               // only its random numbers change
		w.rnd = rand.New(rand.NewPCG(o.Seed+round<<16, uint64(i))) //nolint:gosec // reproducible by its seed
		w.draws = round<<20 + uint64(i)<<10
		workers.Go(func() {
			for time.Now().Before(until) && ctx.Err() == nil {
				err := send(ctx, &w, i, t)
				if errors.Is(err, errBusy) {
					err = sleep.For(ctx, busyPause)
				}
				if err != nil {
					cancel(err)
				}
			}
		})
	}
	workers.Wait()
	return t, context.Cause(ctx)
}

// errBusy means that a node has refused a transaction.
var errBusy = errors.New("the node refused a transaction")

// batch sends transactions of an account. If the node refuses one (errBusy), it and the later ones
// are signed again in the next batch.
func (c *cluster) batch(ctx context.Context, b *bank, from *account, node api.NodeClient, n, percent int, t *tally) error {
	first := from.nonce
	var txs [][]byte
	var calls []bool
	for range n {
		call := b.rnd.IntN(100) < percent
		raw, err := from.sign(b.next(from, call))
		if err != nil {
			return err
		}
		txs, calls = append(txs, raw), append(calls, call)
	}
	results, err := send(ctx, node, txs)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, r := range results {
		if r.GetHeight() == 0 {
			from.nonce = first + uint64(i)
			t.refused += len(results) - i
			return errBusy
		}
		t.codes[r.GetCode()]++
		if r.GetCode() == 0 {
			t.done++
		}
		if calls[i] {
			t.transfers++
		}
	}
	return nil
}

// cpuOf returns the CPU time of nodes.
func (c *cluster) cpuOf(homes []*e2e.Home) float64 {
	var pids []int
	for _, h := range homes {
		pids = append(pids, c.net.Pid(h))
	}
	return harness.CPUOf(pids...)
}

// Metrics of storage nodes. Keys include ranges of keys.
const (
	metricRequests = "starling_storagenode_requests_total"
	metricReads    = "starling_storagenode_reads_total"
)

// metrics returns the sums of all validators' metrics, and of those of the storage nodes.
func (c *cluster) metrics(ctx context.Context) (e2e.MetricValues, error) {
	sum := e2e.MetricValues{}
	for _, h := range c.net.Validators {
		values, err := h.ScrapeLabelled(ctx)
		if err != nil {
			return nil, err
		}
		for name, v := range values {
			sum[name] += v
		}
	}
	for _, h := range c.net.Storage {
		values, err := h.Scrape(ctx)
		if err != nil {
			return nil, err
		}
		for _, name := range []string{metricRequests, metricReads} {
			sum[name] += values[name]
		}
	}
	return sum, nil
}

// usage is CPU time in seconds, by role.
type usage struct{ validators, storage, gateways, clients float64 }

func (c *cluster) usage() usage {
	return usage{c.cpuOf(c.net.Validators), c.cpuOf(c.net.Storage), c.cpuOf(c.gateways), harness.CPUTime().Seconds()}
}

func (u usage) plus(v usage, sign float64) usage {
	return usage{u.validators + sign*v.validators, u.storage + sign*v.storage, u.gateways + sign*v.gateways, u.clients + sign*v.clients}
}

// round measures transfers among puts once.
func (c *cluster) round(ctx context.Context, o Options, percent int, number uint64) (netSample, error) {
	return c.measure(ctx, o, percent, number, func(ctx context.Context, b *bank, i int, t *tally) error {
		return c.batch(ctx, b, c.bank.accounts[i], c.entries[i%len(c.entries)], o.Batch, percent, t)
	})
}

// measure measures a load once.
func (c *cluster) measure(ctx context.Context, o Options, percent int, number uint64, send sender) (s netSample, err error) {
	before, err := c.metrics(ctx)
	if err != nil {
		return s, err
	}
	cpu, began := c.usage(), time.Now()
	t, err := c.load(ctx, o, number, send)
	if err != nil {
		return s, fmt.Errorf("%s, %d %%: %w", c.mode, percent, err)
	}
	seconds, used := time.Since(began).Seconds(), c.usage()
	after, err := c.metrics(ctx)
	if err != nil {
		return s, err
	}
	grown := func(name string) float64 { return after[name] - before[name] }
	of := func(metric, call string) float64 { return grown("starling_app_witness_" + metric + " " + call) }
	s = netSample{tps: float64(t.done) / seconds, done: t.done, transfers: t.transfers, refused: t.refused, codes: t.codes, load: harness.LoadAverage(), retried: t.retried, recovered: t.recovered}
	s.cpu = used.plus(cpu, -1)
	s.leftOut = grown("starling_app_witness_left_out_total")
	for _, call := range []string{callProcess, callFinalize} {
		s.waited += of("wait_seconds_count", call) - of("wait_seconds_unwaited", call)
		s.waitS += of("wait_seconds_sum", call)
		s.rounds += of("rounds_total", call)
		s.bytes += of("bytes_total", call)
	}
	s.ahead, s.aheadBytes = of("rounds_total", callAhead), of("bytes_total", callAhead)
	s.blocks = of("wait_seconds_count", callFinalize)
	s.height = grown("starling_app_height") / validators
	s.requestsS, s.readsS = grown(metricRequests)/seconds/storageNodes, grown(metricReads)/seconds/storageNodes
	return s, nil
}

// Labels of the metrics of witnesses.
const (
	callProcess  = "process_proposal"
	callFinalize = "finalize_block"
	callAhead    = "prefetch"
)

// netSample is one round of a load.
type netSample struct {
	tps                      float64
	done, transfers, refused int
	retried, recovered       int
	codes                    map[uint32]int
	load                     float64
	cpu                      usage
	height                   float64 // blocks
	requestsS, readsS        float64 // of a storage node, per second
	// Sums over all validators. blocks are FinalizeBlock calls that could have waited.
	blocks, waited, waitS, rounds, bytes, ahead, aheadBytes, leftOut float64
}
