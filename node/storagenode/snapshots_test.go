package storagenode

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/transport"
)

// Two storage nodes with one range each serve all chunks of a snapshot together, also after a
// restart, and drop the snapshots if these take too much memory. A false outline is detected.
func TestServesChunks(t *testing.T) {
	t.Parallel() // it waits for blocks
	c := newChainOf(t, app.Genesis{Open: true, ChunkBytes: 512, SnapshotInterval: 50}, twoRanges()...)
	var homes [2]string
	var addresses [2]transport.Address
	for i, port := range nodetest.FreePorts(t, 2) {
		address := fmt.Sprint("127.0.0.1:", port)
		home, id := c.storageHomeAt(address)
		homes[i], addresses[i] = home, transport.Address{ID: id, HostPort: address}
	}
	for _, home := range homes {
		text := fmt.Sprintf("[[range]]\nfirst = \"\"\nnodes = [%q]\n[[range]]\nfirst = %q\nnodes = [%q]\n", addresses[0], c.ranges[1].First, addresses[1])
		nodetest.WriteFile(t, filepath.Join(home, config.DefaultStorageNodesFile), text)
	}
	logs := new(nodetest.LogBuffer)
	start := func(i int, logger log.Logger, limit uint64) *Process {
		conf := nodetest.Load(t, homes[i])
		conf.App.StorageNode.ServeHeights = 200
		n, err := New(t.Context(), Options{Config: conf, Logger: logger})
		require.NoError(t, err)
		t.Cleanup(func() {
			if n.ctx.Err() == nil {
				require.NoError(t, n.Stop())
			}
		})
		n.chunks.limit = limit
		n.Start()
		return n
	}
	a, b := start(0, logs.Logger(t), 256<<20), start(1, log.NewNopLogger(), 256<<20)
	v, w := c.dial(a), c.dial(b)
	c.put(0, 40)
	written := c.node.Application().Height()
	follow := func() bool {
		height := c.node.Application().Height() - 3
		one, other := w.feed(height), v.feed(height) // both, although one is behind
		return one && other
	}
	nodetest.Until(t, "a snapshot with all keys at both nodes", func() bool {
		follow()
		return a.chunks.newest() > written && b.chunks.newest() > written
	})
	require.True(t, logs.Has("Serving chunks of a snapshot"))
	nodetest.Until(t, "a snapshot that both serve whole", func() bool {
		follow()
		for _, p := range a.chunks.manager.Parts() {
			if p.Height > written && c.served(p.Height, a, b) {
				return true
			}
		}
		return false
	})

	var snapshot *server.Snapshot
	nodetest.Until(t, "a height that is answered", func() (ok bool) {
		height, _ := a.all()[0].replica.Newest()
		a.mu.Lock()
		defer a.mu.Unlock()
		var err error
		snapshot, err = a.mu.node.Snapshot(height)
		return err == nil
	})
	b.chunks.publish(snapshot.Height, []byte{1, 1})
	require.ErrorIs(t, a.chunks.addOutline(t.Context(), snapshot, b.Address()), server.ErrOutline)
	b.chunks.publish(snapshot.Height, nil)
	require.Error(t, a.chunks.addOutline(t.Context(), snapshot, b.Address()))
	long := &snapshots{n: &Process{dialer: dials{"long": &endless{}}}}
	require.ErrorIs(t, long.addOutline(t.Context(), snapshot, transport.Address{ID: "long"}), server.ErrOutline)
	require.NoError(t, snapshot.Close())

	require.NoError(t, a.Stop())
	logs = new(nodetest.LogBuffer)
	a = start(0, logs.Logger(t), 0)
	v = c.dial(a)
	c.put(40, 45)
	nodetest.Until(t, "a snapshot that takes too much memory", func() bool {
		follow()
		return logs.Has("take more memory than storage_node.serve_bytes") || logs.Has("more than storage_node.serve_bytes")
	})
}

// Only the newest outlines are kept for other nodes.
func TestOldOutlinesAreDropped(t *testing.T) {
	s := &snapshots{interval: 50}
	s.mu.outlines = map[int64][]byte{}
	for height := int64(50); height <= 500; height += 50 {
		s.publish(height, []byte{1})
		require.LessOrEqual(t, len(s.mu.outlines), keepOutlines)
	}
	_, ok := s.outline(450)
	require.True(t, ok)
}

// endless sends parts of an outline that is longer than that of a small state can be.
type endless struct {
	answering
	parts int
}

func (e *endless) Call(context.Context, transport.Call) ([]byte, error) {
	if e.parts++; e.parts > 10 {
		return nil, transport.ErrGone
	}
	return make([]byte, dsm.MaxOutlineRange), nil
}

// served reports whether the nodes serve all chunks of a snapshot together, and requires that these
// belong to the state.
func (c *chain) served(height int64, nodes ...*Process) bool {
	c.t.Helper()
	c.mu.Lock()
	v := c.versions[height]
	c.mu.Unlock()
	for k := range v.NumChunks() {
		if !slices.ContainsFunc(nodes, func(n *Process) bool {
			s, ok := n.chunks.manager.Serve(height)
			if !ok {
				return false
			}
			defer s.Release()
			require.Equal(c.t, v.Manifest().Encode(), s.Manifest())
			if !s.Has(k) {
				return false
			}
			want, err := v.Chunk(k)
			require.NoError(c.t, err)
			got, err := s.Chunk(k)
			require.NoError(c.t, err)
			require.Equal(c.t, want, got)
			return true
		}) {
			return false
		}
	}
	return true
}
