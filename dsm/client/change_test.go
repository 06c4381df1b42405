package client_test

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/client"
	"github.com/starling-kv/starling/dsm/client/feed"
	"github.com/starling-kv/starling/internal/bubble"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/transport"
)

// A range is divided while blocks are made. The new ranges get all updates from the first block on
// whose version has the paths to the new edge. No block waits for them, and requests go to them
// only once they have replaced the old range.
func TestMapChanges(t *testing.T) {
	seed := seeds.New(t)
	inWorld(t, seed, 2, 2, func(w *world) {
		defer w.run()()
		s := w.source(func(o *client.Options) { o.Feed = testFeed() })
		defer func() { require.NoError(t, s.Close()) }()
		w.block(w.draw())
		w.feed(1)
		s.Begin(1)
		h := w.join(s, 0, 20)
		defer func() {
			h.partial.Release()
			h.base.Release()
		}()
		block := func(edges ...[]byte) {
			w.block(w.draw())
			require.NoError(t, s.Room(context.Background()))
			h.execute(w.changes[w.height()])
			wants := []avlstar.Want{{Key: w.ranges.Shard(1).Range.First}}
			for _, edge := range edges {
				wants = append(wants, avlstar.Want{Key: edge})
			}
			h.read(wants)
			require.NoError(t, s.Committed(w.height(), h.partial.Version(), h.base.Version(), w.changes[w.height()]))
			w.prove(w.height() - 1)
			bubble.Sleep(time.Second)
			h.shed()
		}
		for range 5 {
			block()
		}

		// An edge to which no path is at hand yet: the map has to wait.
		old := w.ranges.Shard(0)
		edge := append(bytes.Clone(old.Range.After[:len(old.Range.After)-1]), '0'-1)
		m := client.Map{Ranges: w.ranges, Addresses: map[dsm.NodeID]transport.Address{}}
		var added []*node
		for _, r := range []avlstar.KeyRange{{After: edge}, {First: edge, After: old.Range.After}} {
			p := dsm.Placement{Range: r}
			for range 2 {
				n := w.add(r)
				added = append(added, n)
				p.Replicas = append(p.Replicas, n.name)
			}
			m.Next = append(m.Next, p)
		}
		for _, n := range w.nodes {
			m.Addresses[n.name] = n.address
		}
		require.NoError(t, s.SetMap(m))
		require.Contains(t, s.Edges(), edge)
		require.Len(t, s.Status().Ranges, 2)
		block(edge)
		require.Len(t, s.Status().Ranges, 4)
		block(edge)
		for _, n := range added {
			w.open(n, w.height()-1) // it has fetched its range
			defer w.advance(n)()
		}
		for range 4 {
			block(edge)
		}
		for _, r := range s.Status().Ranges {
			require.Equal(t, !r.Range.Equal(old.Range) && !r.Range.Equal(w.ranges.Shard(1).Range), r.Next)
			for _, n := range r.Nodes {
				require.Equal(t, feed.InStep, n.State, "%v", r.Range)
				require.GreaterOrEqual(t, n.Durable, w.height()-2, "%v", r.Range)
			}
		}
		for _, p := range m.Next {
			for _, name := range p.Replicas {
				require.Zero(t, w.node(name).asked.Load(), "a next range was asked")
			}
		}

		// The new ranges replace the old one, whose nodes go away.
		ranges, err := dsm.NewRanges(append(slices.Clone(m.Next), w.ranges.Shard(1)))
		require.NoError(t, err)
		for _, name := range old.Replicas {
			delete(m.Addresses, name)
		}
		require.Error(t, s.SetMap(client.Map{Ranges: ranges}), "nodes without addresses")
		require.NoError(t, s.SetMap(client.Map{Ranges: ranges, Addresses: m.Addresses}))
		for _, name := range old.Replicas {
			w.node(name).listener.Close()
		}
		for range 5 {
			block(edge)
		}
		require.GreaterOrEqual(t, s.Durable(), w.height()-2)
		require.Len(t, s.Status().Ranges, 3)
		wants := []avlstar.Want{{Range: true}}
		h.read(wants)
		require.Equal(t, w.full[w.height()].AppHash(), h.partial.AppHash())
		require.NotZero(t, w.node(m.Next[0].Replicas[0]).asked.Load()+w.node(m.Next[0].Replicas[1]).asked.Load())
	})
}
