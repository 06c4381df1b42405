package clientbench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/crypto/ed25519"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/client"
)

// WatchOptions are the options of a run with watchers.
type WatchOptions struct {
	Rounds        int
	Seconds       int // of blocks with watchers, and without, in each round
	Watchers      int // of one key each; as many keys are written in turn
	All           int // watchers of everything
	Shared        bool
	Changes       int // a second
	TxChanges     int // of a transaction
	Heights       int // of the log that is caught up with
	TimeoutCommit time.Duration
	Dir           string // for the homes; the run makes a folder in it
	Starlingd     string // a built starlingd; empty: built
}

// Check returns an error that names the flag that is out of range, and the range.
func (o WatchOptions) Check() error {
	switch {
	case o.Rounds < 1 || o.Rounds > 100:
		return fmt.Errorf("--rounds is %d, it must be from 1 to 100", o.Rounds)
	case o.Seconds < 1 || o.Seconds > 3600:
		return fmt.Errorf("--seconds is %d, it must be from 1 to 3600", o.Seconds)
	case o.Watchers < 1 || o.Watchers > 10_000:
		return fmt.Errorf("--watchers is %d, it must be from 1 to 10000", o.Watchers)
	case o.All < 0 || o.All > 1000:
		return fmt.Errorf("--all is %d, it must be from 0 to 1000", o.All)
	case o.TxChanges < 1 || o.TxChanges > 1000:
		return fmt.Errorf("--tx-changes is %d, it must be from 1 to 1000", o.TxChanges)
	case o.Changes < o.TxChanges || o.Changes > 1_000_000:
		return fmt.Errorf("--changes is %d, it must be from %d (--tx-changes) to 1000000 a second", o.Changes, o.TxChanges)
	case o.Heights < 1 || o.Heights > 90_000:
		return fmt.Errorf("--heights is %d, it must be from 1 to 90000: a node keeps the events of 100,000 blocks", o.Heights)
	case o.TimeoutCommit < 0 || o.TimeoutCommit > time.Minute:
		return fmt.Errorf("--timeout-commit is %v, it must be from 0 to 1m", o.TimeoutCommit)
	}
	return nil
}

// catchUpChanges is how many changes each transaction makes of those that are caught up with.
const catchUpChanges = 100

// watchRun makes one run.
type watchRun struct {
	o        WatchOptions
	dir      string
	program  string
	progress *harness.Progress
	result   WatchResult
}

// RunWatch measures watchers. It says on progress how far it is, and ends its processes in any
// case. A watcher that misses an event, or gets one that is not the next, is an error.
func RunWatch(ctx context.Context, o WatchOptions, progress *harness.Progress) (*WatchResult, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	r := &watchRun{o: o, progress: progress, result: newWatchResult(o)}
	err := harness.InFolder(ctx, o.Dir, "homes", progress, func(dir string) (err error) {
		r.dir = dir
		progress.Begin("build", "programs", 1)
		progress.Working(nameStarling)
		if r.program, err = buildStarlingd(ctx, o.Starlingd, dir); err != nil {
			return err
		}
		progress.Add(1)
		if err := r.catchUp(ctx); err != nil {
			return fmt.Errorf("catch up: %w", err)
		}
		return r.watchers(ctx)
	})
	if err != nil {
		return nil, err
	}
	r.result.judge()
	return &r.result, nil
}

// node is a network of one validator, and a client of it that writes.
type node struct {
	*network
	writer *client.Client
}

func (r *watchRun) start(ctx context.Context, name string, edit func(*cfg.Config)) (*node, error) {
	net, err := startNetwork(ctx, r.program, filepath.Join(r.dir, name), 1, edit)
	if err != nil {
		return nil, err
	}
	writer, err := client.Dial(ctx, net.rpcs(), client.WithKey(ed25519.GenPrivKeyFromSecret([]byte("bench"))), client.WithChainID(chainID))
	if err != nil {
		return nil, errors.Join(err, net.stop())
	}
	return &node{net, writer}, nil
}

// watchers measures the blocks of a node without watchers and with them, in turns.
func (r *watchRun) watchers(ctx context.Context) (err error) {
	n, err := r.start(ctx, "watched", func(c *cfg.Config) {
		c.Consensus.TimeoutCommit = r.o.TimeoutCommit
		c.RPC.MaxOpenConnections = r.o.Watchers + r.o.All + 100
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.stop()) }()
	load := &changes{n: n, keys: r.o.Watchers, inTx: r.o.TxChanges, rate: r.o.Changes}
	r.progress.Begin("blocks", "phases", 2*r.o.Rounds)
	return harness.InTurns(r.o.Rounds, []bool{false, true}, func(_ int, watched bool) error {
		r.progress.Working(map[bool]string{false: "nobody watches", true: "all watch"}[watched])
		b, err := r.phase(ctx, load, watched)
		if err != nil {
			return err
		}
		to := &r.result.Alone.Rounds
		if watched {
			to = &r.result.Watched.Rounds
		}
		*to = append(*to, b)
		r.progress.Add(1)
		return nil
	})
}

// warm is the part of a phase that is not counted: connections are new.
const warm = 3 * time.Second

// phase writes changes, with watchers or without, and measures the blocks meanwhile.
func (r *watchRun) phase(ctx context.Context, load *changes, watched bool) (b BlockRound, err error) {
	crowd := &crowd{}
	if watched {
		if crowd, err = gather(ctx, r.o, load); err != nil {
			return b, err
		}
		defer crowd.dismiss()
	}
	first := load.next
	writing, end := context.WithTimeout(ctx, warm+time.Duration(r.o.Seconds)*time.Second)
	defer end()
	began := make(chan measured, 1)
	go func() {
		timer := time.NewTimer(warm)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-writing.Done():
		}
		began <- load.n.look(ctx)
	}()
	if err := load.write(ctx, writing); err != nil {
		return b, err
	}
	before, after := <-began, load.n.look(ctx)
	if err := errors.Join(before.err, after.err); err != nil {
		return b, err
	}
	if err := load.settle(ctx); err != nil {
		return b, err
	}
	if watched {
		events, err := crowd.wait(ctx)
		if err != nil {
			return b, err
		}
		r.result.Events += events
	}
	seconds := after.at.Sub(before.at).Seconds()
	b.Changes = float64(load.next-first) / (warm.Seconds() + float64(r.o.Seconds))
	b.CPUPercent = 100 * harness.Ratio(after.cpu-before.cpu, seconds)
	intervals, err := load.n.intervals(ctx, before.height, after.height)
	b.Blocks, b.P50MS, b.P99MS, b.MaxMS = len(intervals), harness.Median(intervals), harness.Percentile(intervals, 99), harness.Percentile(intervals, 100)
	return b, err
}
