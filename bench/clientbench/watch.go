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
	"github.com/starling-kv/starling/bench/network"
	"github.com/starling-kv/starling/client"
)

// catchUpChanges is the number of changes in each transaction of the catch-up measurement.
const catchUpChanges = 100

// watchRun is the state of one run.
type watchRun struct {
	o        WatchOptions
	dir      string
	program  string
	progress *harness.Progress
	result   WatchResult
}

// RunWatch measures watchers. It reports to progress, and always stops its processes. It fails if a
// watcher misses an event or gets one out of order.
func RunWatch(ctx context.Context, o WatchOptions, progress *harness.Progress) (*WatchResult, error) {
	r := &watchRun{o: o, progress: progress, result: newWatchResult(o)}
	err := harness.InFolder(ctx, progress, func(dir string) (err error) {
		r.dir = dir
		if r.program, err = network.Starlingd(ctx, o.Starlingd, progress); err != nil {
			return err
		}
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

// node is a network of one validator, and a client that writes to it.
type node struct {
	*network.Network
	writer *client.Client
}

func (r *watchRun) start(ctx context.Context, name string, edit func(*cfg.Config)) (*node, error) {
	net, err := r.o.start(ctx, r.program, filepath.Join(r.dir, name), 1, edit)
	if err != nil {
		return nil, err
	}
	writer, err := client.Dial(ctx, net.RPCs(), client.WithKey(ed25519.GenPrivKeyFromSecret([]byte("bench"))), client.WithChainID(network.ChainID))
	if err != nil {
		return nil, errors.Join(err, net.Stop())
	}
	return &node{net, writer}, nil
}

// watchers measures the blocks of a node without and with watchers, in turns.
func (r *watchRun) watchers(ctx context.Context) (err error) {
	n, err := r.start(ctx, "watched", func(c *cfg.Config) {
		r.o.configure(c)
		c.RPC.MaxOpenConnections = r.o.Watchers + r.o.All + 100
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Stop()) }()
	load := &changes{n: n, keys: r.o.Watchers, inTx: r.o.TxChanges, rate: r.o.Changes}
	r.progress.Begin("blocks", "phases", 2*r.o.Rounds)
	return harness.InTurns(r.o.Rounds, []bool{false, true}, func(_ int, watched bool) error {
		r.progress.Working(map[bool]string{false: "no watchers", true: "watchers"}[watched])
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

// warm is the uncounted beginning of each phase, in which connections are new.
const warm = 3 * time.Second

// phase writes changes, with or without watchers, and measures the blocks meanwhile.
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
