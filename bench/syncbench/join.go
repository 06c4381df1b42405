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
	"github.com/starling-kv/starling/statesync/peers"
	"github.com/starling-kv/starling/statesync/restore"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/sgc"
	"github.com/starling-kv/starling/storage/treestore"
)

// join joins from the peers of t into the empty folder dir. It returns when the state is verified,
// durable and ingested. It does what a node does, except that t has the app hash, which a node
// takes from light blocks. budget is the memory of a paged state; 0: the state stays in memory.
// blocks, if not nil, makes blocks once the state is durable.
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
	peers := peers.New(peers.Options{Logger: log.NewNopLogger(), Dialer: dialer, Addresses: addresses})
	defer peers.Close()
	z.began = func() { s.ManifestS = time.Since(from).Seconds() }
	z.complete = func() { s.FetchedS = time.Since(from).Seconds() }
	done, err := restore.Run(ctx, restore.Options{
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
		return s, fmt.Errorf("the joined state has the app hash %s, the target has %s", hash, t.AppHash)
	}
	return s, nil
}

// headers replaces verified headers, up to the newest header that is needed to start at the target.
type headers struct{ Target }

func (h headers) Newest(context.Context) (int64, error) { return h.Height + 2, nil }

func (h headers) Conflict() error { return nil }

func (h headers) AppHash(_ context.Context, height int64) ([]byte, error) {
	if height != h.Height {
		return nil, fmt.Errorf("there is no header after block %d", height)
	}
	return h.Target.AppHash[:], nil
}

// zone is the target of a join: a node's store. It records the time of each phase.
type zone struct {
	treestore.Target
	state         *storage.Zone
	store         *treestore.Store
	blocks        *settlingBlocks // nil: no blocks are made
	chunks        int64
	manifestBytes int64

	written atomic.Int64
	// began is called when the manifest is verified, complete when all chunks are verified and
	// written.
	began, complete func()
}

var _ restore.Target = (*zone)(nil)

// openZone divides memory as a node does: an eighth for the database, and an eighth that is
// reserved for the block store; the rest is for the tree and its pages.
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

// pagedZone also builds the version from what it wrote.
type pagedZone struct {
	*zone
	builder statesync.Builder
}

var _ statesync.Builder = pagedZone{}

// Build implements statesync.Builder.
func (z pagedZone) Build() (*avlstar.Version, error) { return z.builder.Build() }

// target returns the target that a join writes to.
func (z *zone) target() restore.Target {
	if builder, paged := z.Target.(statesync.Builder); paged {
		return pagedZone{z, builder}
	}
	return z
}

// Continue implements statesync.Resumer. restore.Run calls it first.
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
