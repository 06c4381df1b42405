package node

import (
	"context"
	"testing"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/internal/nodetest"
)

// A chain begins although its validator restarts before its storage nodes first ran, which need the
// validator's headers: in any order, any number of times.
func TestShardedValidatorRestartsBeforeItsStorageNodes(t *testing.T) {
	t.Parallel() // it waits for blocks
	w := newShardedNetwork(t, []string{"key-10"}, [][]int{{0}, {1}})
	n := start(t, w.validator, log.NewNopLogger())
	nodetest.Until(t, "the first block", func() bool { return n.Comet().BlockStore().Height() >= 1 })
	require.NoError(t, n.Stop())

	type made struct {
		node *Node
		err  error
	}
	restart := func() (cancel func(), done chan made) {
		ctx, cancel := context.WithCancel(t.Context())
		logs := new(nodetest.LogBuffer)
		done = make(chan made, 1)
		go func() {
			n, err := New(ctx, nodetest.Load(t, w.validator), logs.Logger(t))
			done <- made{n, err}
		}()
		nodetest.Until(t, "the validator waits", func() bool { return logs.Has("Waiting for the storage nodes") })
		return cancel, done
	}
	stopped := func(cancel func(), done chan made) {
		cancel()
		require.ErrorIs(t, (<-done).err, context.Canceled)
	}
	stopped(restart())
	cancel, done := restart()
	w.start(0)
	nodetest.Until(t, "a storage node with the genesis state", func() bool { return len(w.nodes[0].Claims()) == 1 })
	stopped(cancel, done)
	w.stop(0)
	cancel, done = restart()
	defer cancel()
	w.start(1)
	w.start(0)
	of := <-done
	require.NoError(t, of.err)
	t.Cleanup(func() { require.NoError(t, of.node.Stop()) })
	require.NoError(t, of.node.Start(t.Context()))
	client := nodetest.RPC(t, w.validator)
	for _, key := range []string{"key-05", "key-15"} {
		nodetest.Put(t, client, key, "value")
		require.Equal(t, "value", nodetest.Get(t, client, key))
	}
	nodetest.SameHashes(t, of.node.Application(), of.node.Comet)
}
