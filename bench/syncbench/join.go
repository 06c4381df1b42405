package syncbench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/fastsync"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/sgc"
	"github.com/starling-kv/starling/treestore"
)

// join connects to the peers of t and returns when the state is verified and durable in the empty
// folder dir, and settled. It does what a node does, except that t has the app hash, which a node
// takes from light blocks. budget is that of a state that is paged; 0: it stays in memory. blocks,
// if not nil, are made from then on.
func join(ctx context.Context, t Target, dir string, budget int64, blocks *settlingBlocks) (s JoinStats, err error) {
	from := time.Now()
	dialer, err := newDialer(t)
	if err != nil {
		return s, err
	}
	addresses, err := t.addresses()
	if err != nil {
		return s, err
	}
	z, err := openZone(dir, budget)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, z.close()) }()
	z.blocks = blocks
	peers := fastsync.NewPeers(fastsync.PeersOptions{Logger: log.NewNopLogger(), Dialer: dialer, Addresses: addresses})
	defer peers.Close()
	z.began = func() { s.ManifestS = time.Since(from).Seconds() }
	z.complete = func() { s.FetchedS = time.Since(from).Seconds() }
	done, err := fastsync.Join(ctx, fastsync.Options{
		Logger: log.NewNopLogger(), Peers: peers, Headers: headers{t}, Target: z.target(), Interval: servedHeight,
	})
	if err != nil {
		return s, err
	}
	defer done.Version.Release()
	s.DurableS = time.Since(from).Seconds()
	settled := z.state.Settled()
	if blocks != nil {
		if err := blocks.make(z.store, done.Version, settled); err != nil {
			return s, err
		}
	}
	<-settled
	s.SettledS = time.Since(from).Seconds()
	sum := done.Summary
	s.Wasted, s.Chunks, s.Refetched, s.Banned = int64(sum.Wasted), sum.Chunks, sum.Refetched, sum.Banned
	s.Manifest = z.manifestBytes
	s.Bytes = int64(sum.Bytes-sum.Reused+sum.Wasted) + s.Manifest
	s.Keys = int64(done.Version.Len())
	memory := done.Version.Memory()
	s.TreeBytes = int64(memory.NodeBytes + memory.LeafBytes)
	if hash := done.Version.AppHash(); hash != t.AppHash {
		return s, fmt.Errorf("the joined state has the app hash %s, the target %s", hash, t.AppHash)
	}
	return s, nil
}

// headers stands for proved headers, up to the newest that is needed to start at the target.
type headers struct{ Target }

func (h headers) Newest(context.Context) (int64, error) { return h.Height + 2, nil }

func (h headers) Conflict() error { return nil }

func (h headers) AppHash(_ context.Context, height int64) ([]byte, error) {
	if height != h.Height {
		return nil, fmt.Errorf("no header after block %d", height)
	}
	return h.Target.AppHash[:], nil
}

// zone is the target of a join: the store of a node. It records the time of each phase.
type zone struct {
	treestore.Target
	state         *storage.Zone
	store         *treestore.Store
	blocks        *settlingBlocks // nil: none are made
	chunks        int64
	manifestBytes int64

	written atomic.Int64
	// began is called when the manifest is proved, complete when all chunks are proved and written.
	began, complete func()
}

var _ fastsync.Target = (*zone)(nil)

// openZone divides memory as a node does: an eighth for the database, and what another eighth for
// the block zone leaves for the tree and its pages.
func openZone(dir string, memory int64) (*zone, error) {
	so, o := storage.Options{}, treestore.Options{ChainID: chainID}
	if memory > 0 {
		so.CacheBytes, so.Generations = memory/8, true
		o.Cache = sgc.New(memory - 2*so.CacheBytes)
	}
	state, err := storage.Open(filepath.Join(dir, "state"), so)
	if err != nil {
		return nil, err
	}
	o.Zone = state
	store := treestore.New(o)
	return &zone{state: state, store: store, Target: store.JoinTarget(treestore.JoinOptions{})}, nil
}

// pagedZone makes the version of what it wrote.
type pagedZone struct {
	*zone
	builder statesync.Builder
}

var _ statesync.Builder = pagedZone{}

// Build implements statesync.Builder.
func (z pagedZone) Build() (*avlstar.Version, error) { return z.builder.Build() }

// target is what a join writes to.
func (z *zone) target() fastsync.Target {
	if builder, paged := z.Target.(statesync.Builder); paged {
		return pagedZone{z, builder}
	}
	return z
}

// Continue implements statesync.Resumer: a join of fastsync starts with it.
func (z *zone) Continue(height int64, m *avlstar.Manifest) error {
	z.began()
	z.chunks, z.manifestBytes = int64(len(m.Entries)), int64(len(m.Encode()))
	return z.Target.Continue(height, m)
}

// Write implements statesync.Target.
func (z *zone) Write(k uint32, c *avlstar.Chunk) error {
	if z.blocks != nil {
		z.blocks.sample(c, z.chunks)
	}
	err := z.Target.Write(k, c)
	if err == nil && z.written.Add(1) == z.chunks {
		z.complete()
	}
	return err
}

func (z *zone) close() error { return z.state.Close() }
