package node

import (
	"testing"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/node/internal/nodetest"
)

// latest returns what was committed last, for the rest of the test.
func latest(t *testing.T, a *Application) (int64, *avlstar.Version) {
	t.Helper()
	height, v := a.Latest()
	if v != nil {
		t.Cleanup(v.Release)
	}
	return height, v
}

// start runs a node on home; it is stopped at the end of the test unless the test has done so.
func start(t *testing.T, home string, logger log.Logger, opts ...Option) *Node {
	t.Helper()
	n, err := New(t.Context(), nodetest.Load(t, home), logger, opts...)
	require.NoError(t, err)
	stopped := false
	t.Cleanup(func() {
		if t.Failed() {
			n.mu.Lock()
			t.Logf("%s: height %d, failure: %v", home, n.Application().Height(), n.mu.failure)
			n.mu.Unlock()
		}
		if !stopped && n.ctx.Err() == nil {
			require.NoError(t, n.Stop())
		}
		stopped = true
	})
	require.NoError(t, n.Start(t.Context()))
	return n
}
