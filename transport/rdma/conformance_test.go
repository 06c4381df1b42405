package rdma

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/rdma/internal/verbs/verbstest"
	"github.com/starling-kv/starling/transport/transporttest"
)

func TestConformance(t *testing.T) {
	memory := new(verbstest.Fabric)
	var received atomic.Int64
	t.Run("suite", func(t *testing.T) {
		transporttest.Run(t, loopback{memory: memory, retry: time.Minute, options: func(o *Options) {
			o.Hooks.Received = func(_ transport.ID, n int) { received.Add(int64(n)) }
		}})
	})
	require.Greater(t, received.Load(), int64(10<<20), "the path was used")
	require.Zero(t, memory.Queues(), "nothing leaks")
}

// TestConformanceOfBrokenPaths lets paths break at random. No call fails because of that.
func TestConformanceOfBrokenPaths(t *testing.T) {
	memory := &verbstest.Fabric{Retry: time.Millisecond}
	const seed = 7
	t.Log("seed", seed)
	memory.Fail(verbstest.Faults{Seed: seed, Break: 0.1})
	var received, broken atomic.Int64
	t.Run("suite", func(t *testing.T) {
		transporttest.Run(t, loopback{memory: memory, retry: time.Millisecond, proposed: true, options: func(o *Options) {
			o.Hooks.Received = func(_ transport.ID, n int) { received.Add(int64(n)) }
			o.Hooks.Down = func(transport.ID, error) { broken.Add(1) }
		}})
	})
	require.Positive(t, received.Load(), "paths were used")
	require.Positive(t, broken.Load(), "and broke")
	require.Zero(t, memory.Queues(), "nothing leaks")
}
