package e2ebench

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cometbft/cometbft/test/loadtime/payload"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/network"
	"github.com/starling-kv/starling/bench/workload"
	"github.com/starling-kv/starling/e2e/runner"
)

// Names of the loads.
const (
	loadOwn      = "own"      // like CometBFT's loadtime: one key, a value with a time and padding
	loadDistinct = "distinct" // each transaction writes a different key
	loadSpread   = "spread"   // like loadDistinct, with keys all over the tree
)

// Loads are the names that Options.Loads accepts.
var Loads = []string{loadOwn, loadDistinct}

// leastBlocks is the minimum number of blocks in a measurement, however short: a rate needs two.
const leastBlocks = 3

// drainPatience is the default of session.patience.
const drainPatience = 2 * time.Minute

// maker returns a new transaction, different from all others. It is safe for concurrent use.
type maker func() (string, error)

func newMaker(load string, connections, size int) maker {
	var made atomic.Uint64
	keys := func(key func(n uint64) string) maker {
		return func() (string, error) {
			tx := key(made.Add(1)) + "="
			return tx + strings.Repeat("x", size-len(tx)), nil
		}
	}
	switch load {
	case loadDistinct:
		return keys(func(n uint64) string { return fmt.Sprintf("key-%d", n) })
	case loadSpread:
		return keys(func(n uint64) string {
			hash := sha256.Sum256(binary.BigEndian.AppendUint64(nil, n))
			return spread(hash[:workload.KeyBytes])
		})
	}
	return func() (string, error) {
		var id [16]byte // as long as loadtime's ID, which does not change during a run
		binary.BigEndian.PutUint64(id[8:], made.Add(1))
		tx, err := payload.NewBytes(&payload.Payload{Connections: uint64(connections), Rate: 1, Size: uint64(size), Id: id[:]})
		return string(tx), err
	}
}

// spread returns a key without the separators of text transactions, and without the first byte of
// system keys.
func spread(key []byte) string {
	for i, b := range key {
		if b == '=' || b == ':' || b == 0 && i == 0 {
			key[i]++
		}
	}
	return string(key)
}

// session is a client of a network: a connection to each validator, and a record of every
// transaction.
type session struct {
	net    *network.Network
	kind   string // kind of the network
	make   maker
	ledger *ledger
	conns  []*conn
	// patience is the time limit for pending transactions to reach a block after the last was sent.
	patience time.Duration
	ctx      context.Context // ends with the first failure
	cancel   context.CancelCauseFunc
	watcher  sync.WaitGroup
}

func openSession(n *network.Network, kind, load string, o Network) (*session, error) {
	s := &session{net: n, kind: kind, make: newMaker(load, len(n.Validators), o.TxBytes), ledger: newLedger(o.InFlight), patience: drainPatience}
	s.ctx, s.cancel = context.WithCancelCause(n.Context())
	started := make(chan struct{})
	s.watcher.Go(func() {
		if err := s.ledger.watch(s.ctx, n.Validators[0].RPC(), func() { close(started) }); err != nil {
			s.cancel(err)
		}
	})
	for _, url := range n.RPCs() {
		c, err := dial(s.ctx, url, s.ledger.refused)
		if err != nil {
			s.close()
			return nil, err
		}
		s.conns = append(s.conns, c)
	}
	select {
	case <-started:
		return s, nil
	case <-s.ctx.Done():
		s.close()
		return nil, context.Cause(s.ctx)
	}
}

func (s *session) close() {
	s.cancel(nil)
	s.watcher.Wait()
	for _, c := range s.conns {
		c.close()
	}
}

// figures are the measurements of one load on one network.
type figures struct {
	TPS        float64 `json:"tps"` // transactions in blocks, from the first block to the last
	P50MS      float64 `json:"p50_ms"`
	P99MS      float64 `json:"p99_ms"`
	MaxMS      float64 `json:"max_ms"`
	IntervalMS float64 `json:"block_interval_ms"` // median
	CPUMicros  float64 `json:"cpu_us"`            // of all validators, per transaction
	Txs        int     `json:"txs"`
}

// sender sends transactions on connection i until ctx ends.
type sender func(ctx context.Context, c *conn, i int) error

// one sends a transaction, once fewer transactions than the limit are pending. Its latency counts
// from at. one returns false if ctx ends while it waits.
func (s *session) one(ctx context.Context, c *conn, at func() time.Time) (bool, error) {
	tx, err := s.make()
	if err != nil || !s.ledger.begin(ctx, tx, at) {
		return false, err
	}
	return true, c.send(tx)
}

// saturating sends as many transactions as the network accepts.
func (s *session) saturating() sender {
	return func(ctx context.Context, c *conn, _ int) error {
		for {
			if more, err := s.one(ctx, c, time.Now); !more || err != nil {
				return err
			}
		}
	}
}

// paced sends rate transactions per second. If one is sent late, its latency still counts from the
// time at which it was due.
func (s *session) paced(rate int) sender {
	every := time.Duration(len(s.conns)) * time.Second / time.Duration(rate)
	return func(ctx context.Context, c *conn, i int) error {
		due := time.Now().Add(every * time.Duration(i) / time.Duration(len(s.conns)))
		timer := time.NewTimer(0)
		defer timer.Stop()
		for ; ; due = due.Add(every) {
			if wait := time.Until(due); wait > 0 {
				timer.Reset(wait)
				select {
				case <-timer.C:
				case <-ctx.Done():
					return nil
				}
			}
			if more, err := s.one(ctx, c, func() time.Time { return due }); !more || err != nil {
				return err
			}
		}
	}
}

// send runs a sender on each connection, and waits for all of them. A failure ends the session.
func (s *session) send(ctx context.Context, send sender) {
	var senders sync.WaitGroup
	for i, c := range s.conns {
		senders.Go(func() {
			if err := send(ctx, c, i); err != nil && ctx.Err() == nil {
				s.cancel(fmt.Errorf("sending to %s: %w", s.net.Validators[i].Name, err))
			}
		})
	}
	senders.Wait()
}

// measure runs send for warm and then duration, or longer if there are too few blocks, and returns
// the figures of the time after warm.
func (s *session) measure(warm, duration time.Duration, send sender) (figures, error) {
	m, err := s.measureSpan(warm, duration, send)
	return m.figures, err
}

// span is the time after warm, and its figures.
type span struct {
	figures
	from, until time.Time
	snapshots   float64 // made by the first validator, of IAVL
}

// measureSpan is measure, and returns the time, too.
func (s *session) measureSpan(warm, duration time.Duration, send sender) (m span, err error) {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	m.from = time.Now().Add(warm)
	go func() {
		defer cancel()
		_ = every(ctx, 10*time.Millisecond, "the end of a load", func() (bool, error) {
			return time.Since(m.from) >= duration && s.ledger.blocksSince(m.from) >= leastBlocks, nil
		}) // ends early only with the session
	}()
	counted := s.count(ctx, warm)
	s.send(ctx, send)
	m.until = time.Now()
	if err := context.Cause(s.ctx); err != nil {
		return m, err
	}
	n, err := counted()
	if err != nil {
		return m, err
	}
	if err := s.drain(); err != nil {
		return m, err
	}
	m.figures, m.snapshots = s.ledger.figures(m.from, m.until), n.snapshots
	m.CPUMicros = harness.Ratio(n.cpu, m.TPS*m.until.Sub(m.from).Seconds()) * 1e6
	return m, nil
}

// counters are the CPU seconds of all validators, and the snapshots that the first one of IAVL has
// made.
type counters struct{ cpu, snapshots float64 }

func (s *session) counters() (c counters, err error) {
	if c.cpu, err = s.net.CPUSeconds(s.ctx); err != nil {
		return c, err
	}
	values, err := s.net.Validators[0].Scrape(s.ctx)
	c.snapshots = values["iavlnode_snapshots"]
	return c, err
}

// count returns a function that returns the difference of the counters from the end of warm until
// it is called.
func (s *session) count(ctx context.Context, warm time.Duration) func() (counters, error) {
	type reading struct {
		counters
		err error
	}
	first := make(chan reading, 1)
	go func() {
		select {
		case <-time.After(warm):
		case <-ctx.Done(): // the session failed
		}
		c, err := s.counters()
		first <- reading{c, err}
	}()
	return func() (counters, error) {
		before := <-first
		if before.err != nil {
			return counters{}, before.err
		}
		after, err := s.counters()
		return counters{after.cpu - before.cpu, after.snapshots - before.snapshots}, err
	}
}

// drain waits until all accepted transactions are in blocks.
func (s *session) drain() error {
	ctx, cancel := context.WithTimeout(s.ctx, s.patience)
	defer cancel()
	err := runner.Poll(ctx, "all transactions to be in blocks", func() bool { return s.ledger.pending() == 0 })
	if err != nil {
		return fmt.Errorf("%s: %d transactions are not in a block: %w", s.kind, s.ledger.pending(), err)
	}
	return s.ledger.whole()
}

// blocksSince returns the number of blocks after a time.
func (l *ledger) blocksSince(from time.Time) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.blocks {
		if !b.at.Before(from) {
			n++
		}
	}
	return n
}

// whole returns an error if a node rejected a transaction.
func (l *ledger) whole() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refusals > 0 {
		return fmt.Errorf("%d transactions were rejected, the first with %w", l.refusals, l.refusal)
	}
	return nil
}

// figures computes the figures from the blocks and from the transactions sent between two times.
func (l *ledger) figures(from, until time.Time) (f figures) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var (
		first, last block
		intervals   []float64
	)
	for _, b := range l.blocksIn(from, until) {
		if first.height == 0 {
			first, last = b, b // its transactions were sent before, so they do not count
			continue
		}
		f.Txs += b.txs
		intervals = append(intervals, millis(b.at.Sub(last.at)))
		last = b
	}
	if seconds := last.at.Sub(first.at).Seconds(); seconds > 0 {
		f.TPS = float64(f.Txs) / seconds
	}
	latencies := l.latenciesIn(from, until)
	f.IntervalMS = harness.Median(intervals)
	f.P50MS, f.P99MS, f.MaxMS = harness.Median(latencies), harness.Percentile(latencies, 99), harness.Percentile(latencies, 100)
	return f
}

// blocksIn returns the blocks between two times. The caller holds l.mu.
func (l *ledger) blocksIn(from, until time.Time) (in []block) {
	for _, b := range l.blocks {
		if !b.at.Before(from) && !b.at.After(until) {
			in = append(in, b)
		}
	}
	return in
}

// latenciesIn returns the latencies, in ms, of the transactions sent between two times. The caller
// holds l.mu.
func (l *ledger) latenciesIn(from, until time.Time) (in []float64) {
	for _, a := range l.latencies {
		if !a.sent.Before(from) && !a.sent.After(until) {
			in = append(in, millis(a.latency))
		}
	}
	return in
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
