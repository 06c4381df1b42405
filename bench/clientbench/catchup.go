package clientbench

import (
	"context"
	"errors"
	"fmt"
	"time"

	cfg "github.com/cometbft/cometbft/config"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/client"
)

// catchUp fills a node's log with many heights, and watches from the first one.
func (r *watchRun) catchUp(ctx context.Context) (err error) {
	n, err := r.start(ctx, "caught-up", func(c *cfg.Config) {
		// As many blocks as there are changes, as soon as there is one.
		c.Consensus.TimeoutCommit, c.Consensus.CreateEmptyBlocks = 0, false
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.stop()) }()
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
		reader, err := client.Dial(ctx, n.rpcs(), client.WithChainID(chainID))
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
				return fmt.Errorf("change %q came where change %d was due", e.Value, next)
			}
		}
		took, own := time.Since(began), harness.CPUTime().Sub(used).Total()
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

// fill writes changes until there are enough heights, and returns the first one.
func (r *watchRun) fill(ctx context.Context, load *changes) (first int64, err error) {
	w, err := load.n.writer.Watch(ctx, nil, client.WatchKey(key(0)))
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
