package network

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	rpchttp "github.com/cometbft/cometbft/rpc/client/http"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/e2e/runner"
)

// BlockTimes returns the times of all blocks from the last one before a time on.
func BlockTimes(ctx context.Context, h *runner.Home, from time.Time) (times []time.Time, err error) {
	rpc, err := rpchttp.New(h.RPC(), "/websocket")
	if err != nil {
		return nil, err
	}
	for top := int64(0); ; {
		page, err := rpc.BlockchainInfo(ctx, 0, top) // the newest 20; top 0: of the chain
		if err != nil {
			return nil, err
		}
		for _, b := range page.BlockMetas {
			times = append(times, b.Header.Time)
			if top = b.Header.Height - 1; b.Header.Time.Before(from) || top < 1 {
				slices.Reverse(times)
				return times, nil
			}
		}
	}
}

// Intervals returns the times between blocks from began to ended in milliseconds, and the longest
// time without a block in seconds. times ascend.
func Intervals(times []time.Time, began, ended time.Time) (millis []float64, halt float64) {
	last := began
	for i, t := range times {
		if t.After(ended) {
			break
		}
		if i > 0 && !t.Before(began) {
			millis = append(millis, t.Sub(times[i-1]).Seconds()*1000)
			halt = max(halt, t.Sub(last).Seconds())
			last = t
		}
	}
	return millis, max(halt, ended.Sub(last).Seconds())
}

// Write is one writer of a constant load: it puts a value under random keys, one each interval,
// until ctx ends. done is called after each put with the time when it began.
func Write(
	ctx context.Context, c *client.Client, every time.Duration, random *rand.Rand, key func(*rand.Rand) []byte, value []byte,
	done func(began time.Time, err error),
) {
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for {
		began := time.Now()
		_, err := c.Put(ctx, key(random), value)
		if ctx.Err() != nil {
			return
		}
		done(began, err)
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
	}
}
