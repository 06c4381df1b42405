package dsmbench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/bench/appstore"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/tx"
)

// The prefetch phase measures how fast a validator fetches nodes ahead, and what its calls still
// wait for. Each transaction writes accounts that were never requested before:
//
//	keys/s   CheckTx of four blocks' transactions ──► until all their nodes are in memory
//	waits    each prefetchInterval: CheckTx … ──► PrepareProposal, ProcessProposal, FinalizeBlock, Commit
const (
	prefetchRounds   = 3  // measurements of keys/s
	prefetchBatch    = 4  // blocks in each of them
	prefetchBlocks   = 24 // at regular intervals
	prefetchTxs      = 250
	prefetchPuts     = 8 // per transaction
	prefetchInterval = 500 * time.Millisecond
)

// coldBlock has transactions, and the accounts that they write.
type coldBlock struct {
	Txs  [][]byte `json:"txs"`
	Keys [][]byte `json:"keys"`
}

// coldBlocks makes n blocks. No account and no signer occurs twice.
func (g *generator) coldBlocks(n int) (blocks []coldBlock, err error) {
	rnd := rand.New(rand.NewPCG(g.Seed, 2))
	accounts, signers := rnd.Perm(g.Keys), rnd.Perm(g.Signers)
	// At most half of the accounts are closed.
	txs := min(prefetchTxs, g.Signers/n, g.Keys/(2*prefetchPuts*n))
	for range n {
		var b coldBlock
		for range txs {
			var operations []tx.Operation
			for len(operations) < prefetchPuts {
				i := accounts[0]
				if accounts = accounts[1:]; g.closed[i] {
					continue
				}
				operations = append(operations, tx.NewPut(g.key(i), make([]byte, valueBytes)))
				b.Keys = append(b.Keys, g.key(i))
			}
			signer := signers[0]
			signers = signers[1:]
			raw, err := tx.Sign(g.keys[signer], chainID, &tx.Body{Nonce: g.nonces[signer], Operations: operations})
			if err != nil {
				return nil, err
			}
			b.Txs = append(b.Txs, raw)
		}
		blocks = append(blocks, b)
	}
	return blocks, nil
}

// runPrefetch measures a validator for each delay.
func (r *runner) runPrefetch(ctx context.Context, dir string) error {
	nodes, err := startNodes(ctx, filepath.Join(dir, "prefetch"), r.o.Shards[0], r.o.Shards[0], r.chain.newest())
	if err != nil {
		return err
	}
	defer nodes.end()
	v := r.chain.newest()
	q := request{Op: opPrefetch, Height: v.height, Hashes: []avlstar.Hash{v.AppHash()}, Batch: r.o.few(prefetchBatch)}
	if q.Records, err = v.Multiproof([]avlstar.Want{records()}, avlstar.Below{Depth: r.o.Retain}); err != nil {
		return err
	}
	// The storage nodes stay at the first height: a validator with a larger window has all changes.
	if q.Cold, err = r.chain.g.coldBlocks(prefetchRounds*q.Batch + r.o.few(min(prefetchBlocks, r.o.Window))); err != nil {
		return err
	}
	r.progress.Begin("prefetch", "delays", len(r.o.Delays))
	for _, ms := range r.o.Delays {
		r.progress.Working(fmt.Sprintf("%d ms", ms))
		row, err := r.prefetch(ctx, nodes, q, ms)
		if err != nil {
			return err
		}
		r.result.Prefetch = append(r.result.Prefetch, row)
		r.progress.Add(1)
	}
	return nil
}

// prefetch starts a process with a validator, whose requests take ms longer.
func (r *runner) prefetch(ctx context.Context, nodes *storageNodes, q request, ms int) (row PrefetchRow, err error) {
	b := begin{Role: roleJoiner, Retain: r.o.Retain, Window: r.o.Window, Nodes: nodes.shards, DelayMS: ms}
	p, err := harness.StartRunning(ctx, ChildName, roleJoiner, b, nil)
	if err != nil {
		return row, err
	}
	defer p.End()
	var a answer
	err = p.Ask(q, &a)
	return a.Prefetch, err
}

// prefetch is runPrefetch in the validator's process.
func (j *joiner) prefetch(ctx context.Context, r request) (row PrefetchRow, err error) {
	row.DelayMS = j.DelayMS
	s, err := j.connect()
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if _, err := s.Claims(ctx); err != nil {
		return row, err
	}
	p, err := j.upper(ctx, r.Height, r.Hashes[0], j.Retain)
	if err != nil {
		return row, err
	}
	if p, err = grafted(p, r.Records); err != nil {
		return row, err
	}
	registry := prometheus.NewRegistry()
	a, err := app.New(app.Options{
		Store: &appstore.Memory{First: p.Version(), Height: r.Height}, ChainID: chainID, KeepRecent: 4, Source: s, Retention: retention(j.Retain, j.Window),
		Edges: s.Edges, Metrics: app.NewMetrics(registry),
	})
	if err != nil {
		return row, err
	}
	defer a.Stop()
	var rates []float64
	for range prefetchRounds {
		rate, err := fetchAhead(ctx, a, r.Cold[:r.Batch])
		if err != nil {
			return row, err
		}
		rates, r.Cold = append(rates, rate), r.Cold[r.Batch:]
	}
	row.KeysS = harness.Median(rates)
	paced := &paced{app: a, registry: registry, height: r.Height, calls: map[string]*calls{}}
	return row, paced.run(ctx, r.Cold, &row)
}

// fetchAhead returns the rate at which nodes for blocks arrive that are not proposed.
func fetchAhead(ctx context.Context, a *app.App, blocks []coldBlock) (keysS float64, err error) {
	began, keys := time.Now(), 0
	for _, b := range blocks {
		if err := check(ctx, a, b.Txs); err != nil {
			return 0, err
		}
		keys += len(b.Keys)
	}
	every := time.NewTicker(time.Millisecond)
	defer every.Stop()
	for _, b := range blocks {
		for _, key := range b.Keys {
			for !lacksNothing(a, []avlstar.Want{{Key: key, Written: true}}) {
				if <-every.C; time.Since(began) > patience {
					return 0, fmt.Errorf("the node of key %x was not fetched ahead within %s", key, patience)
				}
			}
		}
	}
	return float64(keys) / time.Since(began).Seconds(), nil
}

// check lets transactions into the mempool.
func check(ctx context.Context, a *app.App, txs [][]byte) error {
	for i, raw := range txs {
		res, err := a.CheckTx(ctx, &abci.RequestCheckTx{Tx: raw, Type: abci.CheckTxType_New})
		if err != nil {
			return err
		}
		if res.Code != 0 {
			return fmt.Errorf("transaction %d was not admitted: %s", i, res.Log)
		}
	}
	return nil
}

// paced executes blocks at regular intervals.
type paced struct {
	app      *app.App
	registry *prometheus.Registry
	height   int64
	calls    map[string]*calls // by the label of metrics
	last     map[string]float64
}

// calls has the figures of one kind of call, by block.
type calls struct{ waits, rounds, bytes []float64 }

func (p *paced) run(ctx context.Context, blocks []coldBlock, row *PrefetchRow) error {
	every := time.NewTicker(prefetchInterval)
	defer every.Stop()
	if err := p.measure(nil); err != nil {
		return err
	}
	proposed, txs := 0, 0
	for _, b := range blocks {
		p.height++
		if err := check(ctx, p.app, b.Txs); err != nil {
			return err
		}
		<-every.C
		own, err := p.app.PrepareProposal(ctx, &abci.RequestPrepareProposal{Height: p.height, Txs: b.Txs, MaxTxBytes: 4 << 20})
		if err != nil {
			return err
		}
		proposed, txs = proposed+len(own.Txs), txs+len(b.Txs)
		// The proposal of a validator that has all nodes.
		accepted, err := p.app.ProcessProposal(ctx, &abci.RequestProcessProposal{Height: p.height, Txs: b.Txs})
		if err != nil {
			return err
		}
		if !accepted.IsAccepted() {
			row.Rejected++
		}
		res, err := p.app.FinalizeBlock(ctx, &abci.RequestFinalizeBlock{Height: p.height, Txs: b.Txs})
		if err != nil {
			return err
		}
		for i, t := range res.TxResults {
			if t.Code != 0 {
				return fmt.Errorf("block %d, transaction %d failed: %s", p.height, i, t.Log)
			}
		}
		if _, err := p.app.Commit(ctx, &abci.RequestCommit{}); err != nil {
			return err
		}
		if err := p.measure([]string{"prefetch", "process_proposal", "finalize_block"}); err != nil {
			return err
		}
	}
	row.Blocks, row.BlockKeys = len(blocks), len(blocks[0].Keys)
	row.LeftOut = 1 - harness.Ratio(float64(proposed), float64(txs))
	row.Ahead, row.Process, row.Finalize = p.calls["prefetch"].figures(), p.calls["process_proposal"].figures(), p.calls["finalize_block"].figures()
	return nil
}

// measure adds what the metrics of these calls have grown by.
func (p *paced) measure(names []string) error {
	now, err := witnessMetrics(p.registry)
	if err != nil {
		return err
	}
	for _, call := range names {
		c := p.calls[call]
		if c == nil {
			c = &calls{}
			p.calls[call] = c
		}
		grown := func(metric string) float64 {
			name := "starling_app_witness_" + metric + " " + call
			return now[name] - p.last[name]
		}
		c.waits, c.rounds, c.bytes = append(c.waits, grown("wait_seconds")), append(c.rounds, grown("rounds_total")), append(c.bytes, grown("bytes_total"))
	}
	p.last = now
	return nil
}

// witnessMetrics returns the counters and the sums of histograms, by name and call.
func witnessMetrics(registry *prometheus.Registry) (map[string]float64, error) {
	families, err := registry.Gather()
	if err != nil {
		return nil, err
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if l := m.GetLabel(); len(l) == 1 {
				all[f.GetName()+" "+l[0].GetValue()] = m.GetCounter().GetValue() + m.GetHistogram().GetSampleSum()
			}
		}
	}
	return all, nil
}

func (c *calls) figures() (f PrefetchCalls) {
	f.P50MS, f.P99MS = harness.Median(c.waits)*1e3, harness.Percentile(c.waits, 99)*1e3
	n := float64(len(c.waits))
	for i := range c.waits {
		f.Rounds, f.Bytes = f.Rounds+c.rounds[i]/n, f.Bytes+c.bytes[i]/n
		if c.rounds[i] == 0 {
			f.Unwaited += 1 / n
		}
	}
	return f
}

// delayed is a dialer of connections whose calls take longer, by the way there and the way back.
type delayed struct {
	transport.Dialer
	way time.Duration
}

// Dial implements transport.Dialer.
func (d delayed) Dial(ctx context.Context, a transport.Address) (transport.Conn, error) {
	c, err := d.Dialer.Dial(ctx, a)
	if err != nil {
		return nil, err
	}
	return delayedConn{c, d.way}, nil
}

type delayedConn struct {
	transport.Conn
	way time.Duration
}

// Call implements transport.Conn.
func (c delayedConn) Call(ctx context.Context, call transport.Call) ([]byte, error) {
	if err := sleep.For(ctx, c.way); err != nil {
		return nil, err
	}
	b, err := c.Conn.Call(ctx, call)
	return b, errors.Join(err, sleep.For(ctx, c.way))
}
