package e2ebench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"sync"
	"time"

	cfg "github.com/cometbft/cometbft/config"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/network"
	"github.com/starling-kv/starling/e2e/runner"
)

// JoinersOptions configure a run with many joiners.
type JoinersOptions struct {
	Network
	Joiners  int
	Keys     int // keys written before the nodes join
	Rate     int // transactions per second during the run
	Interval int // snapshot interval in blocks
	Seconds  int // duration of the measurement before the joiners start
	Patience time.Duration
}

// askEvery is the interval at which each joiner's progress is polled. It is long enough that
// polling all joiners is no significant load.
const askEvery = 500 * time.Millisecond

// Flags adds the flags of joiners.
func (o *JoinersOptions) Flags(f *harness.Flags) {
	f.Int(&o.Joiners, "joiners", 24, 1, 64, "number of nodes that join at the same time")
	f.Int(&o.Keys, "keys", 25_000, 1, 10_000_000, "number of keys in the state, each as long as a transaction")
	f.Int(&o.Rate, "rate", 200, 1, 100_000, "transactions per second that clients send")
	f.Int(&o.Interval, "snapshot-interval", 20, 1, 100_000, "blocks between snapshots")
	f.Int(&o.Seconds, "seconds", 15, 1, 3600, "seconds of blocks measured before the joiners start, for comparison")
	f.Time(&o.Patience, "patience", 15*time.Minute, time.Second, 24*time.Hour, "time limit for all joins")
	o.flags(f, 1)
	o.inFlight(f, usualMempoolTxs)
	o.txBytes(f, 1024)
}

// JoinersResult is the outcome of a run.
type JoinersResult struct {
	Joiners    int       `json:"joiners"`
	Joined     int       `json:"joined"` // joiners that follow the head, with the right app hash
	Seconds    float64   `json:"seconds"`
	RestoredS  []float64 `json:"restored_s"`  // per joiner: first start to state
	FollowingS []float64 `json:"following_s"` // per joiner: first start to head
	StateBytes int64     `json:"state_bytes"` // verified by one joiner

	Before Blocks `json:"before"`
	During Blocks `json:"during"`

	Validators      int             `json:"validators"`
	Keys            int             `json:"keys"`
	Rate            int             `json:"rate"`
	TimeoutCommitMS float64         `json:"timeout_commit_ms"`
	Machine         harness.Machine `json:"machine"`
}

// Blocks are the intervals between consecutive blocks.
type Blocks struct {
	Blocks int     `json:"blocks"`
	P50MS  float64 `json:"interval_p50_ms"`
	MaxMS  float64 `json:"interval_max_ms"`
	TPS    float64 `json:"tps"`
}

// joiners is the state of one run.
type joiners struct {
	o        JoinersOptions
	net      *network.Network
	session  *session
	progress *harness.Progress
	homes    []*runner.Home
	result   JoinersResult
}

// RunJoiners makes many nodes join a loaded network at the same time, and measures the network's
// blocks.
func RunJoiners(ctx context.Context, o JoinersOptions, progress *harness.Progress) (*JoinersResult, error) {
	j := &joiners{o: o, progress: progress, result: JoinersResult{
		Joiners: o.Joiners, Validators: o.Validators, Keys: o.Keys, Rate: o.Rate, TimeoutCommitMS: millis(o.TimeoutCommit), Machine: harness.ThisMachine(),
	}}
	err := harness.InFolder(ctx, progress, func(dir string) error { return j.run(ctx, dir) })
	if err != nil {
		return nil, err
	}
	return &j.result, nil
}

func (j *joiners) run(ctx context.Context, dir string) (err error) {
	starlingd, err := network.Starlingd(ctx, j.o.Starlingd, j.progress)
	if err != nil {
		return err
	}
	genesis := maps.Clone(network.Open)
	genesis["snapshot_interval"] = j.o.Interval
	if j.net, err = j.o.starling(starlingd, genesis).start(ctx, filepath.Join(dir, "network")); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.net.Stop()) }()
	if j.session, err = openSession(j.net, nameStarling, loadDistinct, j.o.Network); err != nil {
		return err
	}
	defer j.session.close()
	if err := j.fill(); err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(j.session.ctx, j.o.Patience)
	defer cancel()
	if j.homes, err = j.net.Homes(ctx, "joiner", j.o.Joiners); err != nil {
		return err
	}
	defer func() {
		for _, h := range j.homes {
			h.Release()
		}
	}()
	loading, stopLoad := context.WithCancel(ctx)
	defer stopLoad()
	var load sync.WaitGroup
	load.Go(func() { j.session.send(loading, j.session.paced(j.o.Rate)) })
	err = j.join(ctx)
	stopLoad()
	load.Wait()
	if err != nil {
		return err
	}
	return j.session.drain()
}

// fill writes the keys of the state.
func (j *joiners) fill() error {
	j.progress.Begin("write", "keys", j.o.Keys)
	j.progress.Working("all validators")
	var next sync.Mutex
	left := j.o.Keys
	take := func() bool {
		next.Lock()
		defer next.Unlock()
		left--
		return left >= 0
	}
	j.session.send(j.session.ctx, func(ctx context.Context, c *conn, _ int) error {
		for take() {
			if more, err := j.session.one(ctx, c, time.Now); !more || err != nil {
				return err
			}
			j.progress.Add(1)
		}
		return nil
	})
	return j.session.drain()
}

// join starts all joiners and waits until all follow the head.
func (j *joiners) join(ctx context.Context) error {
	j.progress.Begin("blocks before", "seconds", j.o.Seconds)
	j.progress.Working("the validators alone")
	before := time.Now()
	if err := j.snapshotAhead(ctx, time.Duration(j.o.Seconds)*time.Second); err != nil {
		return err
	}
	trusted, err := j.trusted(ctx)
	if err != nil {
		return err
	}
	if err := j.configure(trusted); err != nil {
		return err
	}
	j.progress.Begin("join", "nodes", j.o.Joiners)
	j.progress.Working("all joiners")
	start := time.Now()
	for _, h := range j.homes {
		if err := j.net.Run(h); err != nil {
			return err
		}
	}
	restored, following := make([]time.Duration, len(j.homes)), make([]time.Duration, len(j.homes))
	errs := make([]error, len(j.homes))
	var all sync.WaitGroup
	for i, h := range j.homes {
		all.Go(func() {
			errs[i] = j.follow(ctx, h, func() { restored[i] = time.Since(start) })
			following[i] = time.Since(start)
			j.progress.Add(1)
		})
	}
	all.Wait()
	end := time.Now()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	r := &j.result
	r.Joined, r.Seconds = len(j.homes), end.Sub(start).Seconds()
	for i := range j.homes {
		r.RestoredS, r.FollowingS = append(r.RestoredS, restored[i].Seconds()), append(r.FollowingS, following[i].Seconds())
	}
	r.Before, r.During = j.session.ledger.intervals(before, start), j.session.ledger.intervals(start, end)
	return every(ctx, askEvery, "the metrics of "+j.homes[0].Name, func() (bool, error) {
		values, err := j.homes[0].Scrape(ctx)
		r.StateBytes = values.Starling("statesync_bytes_verified")
		return err == nil, nil
	})
}

// snapshotAhead waits until atLeast has passed and a snapshot with all keys exists, with two blocks
// after it.
func (j *joiners) snapshotAhead(ctx context.Context, atLeast time.Duration) error {
	at, err := j.net.Validators[0].AppInfo(ctx)
	if err != nil {
		return err
	}
	interval := int64(j.o.Interval)
	snapshot := (at.Height + interval - 1) / interval * interval
	least, cancel := context.WithTimeout(ctx, atLeast)
	defer cancel()
	err = every(ctx, askEvery, "a snapshot with all keys", func() (bool, error) {
		at, err := j.net.Validators[0].AppInfo(ctx)
		return err == nil && at.Height >= snapshot+2 && least.Err() != nil, nil
	})
	j.progress.Add(j.o.Seconds)
	return err
}

// trusted returns the height and hash of a recent header.
func (j *joiners) trusted(ctx context.Context) (runner.Header, error) {
	at, err := j.net.Validators[0].AppInfo(ctx)
	if err != nil {
		return runner.Header{}, err
	}
	return j.net.Validators[0].Header(ctx, max(1, at.Height-int64(j.o.Interval)-2))
}

func (j *joiners) configure(trusted runner.Header) error {
	if err := network.CopyGenesis(j.net.Validators[0], j.homes...); err != nil {
		return err
	}
	for _, h := range j.homes {
		err := h.Configure(func(c *cfg.Config) {
			j.o.configure(c)
			c.P2P.PersistentPeers = runner.Peers(j.net.Validators...)
			c.StateSync.Enable = true
			c.StateSync.TrustHeight = trusted.Height
			c.StateSync.TrustHash = fmt.Sprintf("%X", trusted.Hash)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// follow waits until a node follows the head, and compares its app hash with a header of the
// validators. It calls restored when the node has a state.
func (j *joiners) follow(ctx context.Context, h *runner.Home, restored func()) error {
	had := false
	err := every(ctx, askEvery, h.Name+" to follow the head", func() (bool, error) {
		at, err := h.AppInfo(ctx)
		if err != nil || at.Height == 0 {
			return false, nil //nolint:nilerr // not up yet
		}
		if !had {
			had = true
			restored()
		}
		status, err := h.Status(ctx)
		if err != nil || status.CatchingUp {
			return false, nil //nolint:nilerr // too busy to respond: retry
		}
		head, err := j.net.Validators[0].AppInfo(ctx)
		if err != nil || at.Height < head.Height-1 {
			return false, nil //nolint:nilerr // as above
		}
		header, err := j.net.Validators[0].Header(ctx, at.Height+1)
		if err != nil {
			return false, nil //nolint:nilerr // this block does not exist yet
		}
		if !bytes.Equal(header.AppHash, at.Hash) {
			return false, fmt.Errorf("%s has the app hash %X at height %d, the validators have %X", h.Name, at.Hash, at.Height, header.AppHash)
		}
		return true, nil
	})
	return err
}

// every calls done at an interval until done returns true or an error, or ctx ends.
func every(ctx context.Context, pause time.Duration, what string, done func() (bool, error)) error {
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

// intervals returns the times between the blocks from one time to another. The last, unfinished
// interval counts, too.
func (l *ledger) intervals(from, until time.Time) (b Blocks) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var (
		pauses []float64
		txs    int
	)
	last := from
	for _, b := range l.blocksIn(from, until) {
		pauses = append(pauses, millis(b.at.Sub(last)))
		last = b.at
		txs += b.txs
	}
	b.Blocks = len(pauses)
	b.P50MS = harness.Median(pauses)
	b.MaxMS = max(harness.Percentile(pauses, 100), millis(until.Sub(last)))
	b.TPS = harness.Ratio(float64(txs), until.Sub(from).Seconds())
	return b
}
