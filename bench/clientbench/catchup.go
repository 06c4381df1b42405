package clientbench

import (
	"context"
	"errors"
	"fmt"
	"time"

	cfg "github.com/cometbft/cometbft/config"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/network"
	"github.com/starling-kv/starling/client"
)

// catchUp fills a node's event log with many heights, then watches from the first of them.
func (r *watchRun) catchUp(ctx context.Context) (err error) {
	n, err := r.start(ctx, "caught-up", func(c *cfg.Config) {
		// One block for each transaction, without a pause.
		c.Consensus.TimeoutCommit, c.Consensus.CreateEmptyBlocks = 0, false
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Stop()) }()
	load := &changes{n: n, keys: catchUpChanges, inTx: catchUpChanges}
	first, err := r.fill(ctx, load)
	if err != nil {
		return err
	}
	r.progress.Begin("catch up", "rounds", r.o.Rounds)
	r.progress.Working("a watcher")
	for range r.o.Rounds {
		before := n.look(ctx)
		began, used := time.Now(), harness.CPUTime()
		reader, err := client.Dial(ctx, n.RPCs(), client.WithChainID(network.ChainID))
		if err != nil {
			return err
		}
		w, err := reader.Watch(ctx, []byte(keyPrefix), client.WatchFromHeight(first))
		if err != nil {
			return err
		}
		for next := range load.next {
			e, err := w.Next(ctx)
			if err != nil {
				return err
			}
			if got, err := number(e.Value); err != nil || got != next {
				return fmt.Errorf("got change %q, want change %d", e.Value, next)
			}
		}
		took, own := time.Since(began), harness.CPUTime()-used
		after := n.look(ctx)
		if err := errors.Join(before.err, after.err); err != nil {
			return err
		}
		c := &r.result.CatchUp
		c.PerSecond = append(c.PerSecond, harness.Ratio(float64(load.next), took.Seconds()))
		c.NodeMicros = append(c.NodeMicros, 1e6*harness.Ratio(after.cpu-before.cpu, float64(load.next)))
		c.ClientMicros = append(c.ClientMicros, 1e6*harness.Ratio(own.Seconds(), float64(load.next)))
		r.progress.Add(1)
	}
	r.result.CatchUp.Events = load.next
	return nil
}

// fill writes changes until there are enough heights, and returns the first height.
func (r *watchRun) fill(ctx context.Context, load *changes) (first int64, err error) {
	w, err := load.n.writer.Watch(ctx, nil, client.WatchKey(Key(0)))
	if err != nil {
		return 0, err
	}
	r.progress.Begin("fill", "heights", r.o.Heights)
	r.progress.Working(nameStarling)
	for last := int64(0); first == 0 || last < first+int64(r.o.Heights); {
		if err := load.one(ctx); err != nil {
			return 0, err
		}
		e, err := w.Next(ctx)
		if err != nil {
			return 0, err
		}
		if first == 0 {
			first, last = e.Height, e.Height
		}
		r.progress.Add(int(e.Height - last))
		last = e.Height
		r.result.CatchUp.Heights = int(last - first + 1)
	}
	return first, nil
}
