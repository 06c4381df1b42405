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
)

// join connects to the peers of t and returns when the state is verified and durable in the empty folder dir: what a node does, but for the
// light blocks, in whose place stands t's app hash.
func join(ctx context.Context, t Target, dir string) (s JoinStats, err error) {
	from := time.Now()
	dialer, err := newDialer(t)
	if err != nil {
		return s, err
	}
	addresses, err := t.addresses()
	if err != nil {
		return s, err
	}
	z, err := openZone(dir)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, z.close()) }()
	peers := fastsync.NewPeers(fastsync.PeersOptions{Logger: log.NewNopLogger(), Dialer: dialer, Addresses: addresses})
	defer peers.Close()
	z.began = func() { s.ManifestS = time.Since(from).Seconds() }
	z.complete = func() { s.FetchedS = time.Since(from).Seconds() }
	done, err := fastsync.Join(ctx, fastsync.Options{
		Logger: log.NewNopLogger(), Peers: peers, Headers: headers{t}, Target: z, Interval: servedHeight,
	})
	if err != nil {
		return s, err
	}
	defer done.Version.Release()
	s.DurableS = time.Since(from).Seconds()
	sum := done.Summary
	s.Wasted, s.Chunks, s.Refetched, s.Banned = int64(sum.Wasted), sum.Chunks, sum.Refetched, sum.Banned
	s.Manifest = z.manifestBytes
	s.Bytes = int64(sum.Bytes-sum.Reused+sum.Wasted) + s.Manifest
	s.Keys = int64(done.Version.Len())
	if hash := done.Version.AppHash(); hash != t.AppHash {
		return s, fmt.Errorf("the joined state has the app hash %s, the target %s", hash, t.AppHash)
	}
	return s, nil
}

// headers are the proved ones: the newest that is needed to start at the target.
type headers struct{ Target }

func (h headers) Newest(context.Context) (int64, error) { return h.Height + 2, nil }

func (h headers) AppHash(_ context.Context, height int64) ([]byte, error) {
	if height != h.Height {
		return nil, fmt.Errorf("no header after block %d", height)
	}
	return h.Target.AppHash[:], nil
}

// zone is where a joined state goes: the state zone of a node.
type zone struct {
	state         *storage.State
	manifest      *avlstar.Manifest
	manifestBytes int64
	restore       *storage.Restore

	written         atomic.Int64
	began, complete func() // called when the manifest is proved, and when all chunks are, and written
}

var _ fastsync.Target = (*zone)(nil)

func openZone(dir string) (*zone, error) {
	state, err := storage.Open(filepath.Join(dir, "state"), storage.Options{})
	if err != nil {
		return nil, err
	}
	return &zone{state: state}, nil
}

func (z *zone) Begin(_ int64, m *avlstar.Manifest) (err error) {
	z.began()
	label := m.Encode()
	z.manifest, z.manifestBytes = m, int64(len(label))
	z.restore, err = z.state.BeginRestore(label)
	return err
}

// Unfinished, Continue and Stored would go on with a join that was killed: here is none.
func (z *zone) Unfinished() (int64, *avlstar.Manifest, bool)     { return 0, nil, false }
func (z *zone) Continue(height int64, m *avlstar.Manifest) error { return z.Begin(height, m) }
func (z *zone) Stored(uint32) []byte                             { return nil }

// Write implements statesync.Target. The run of a chunk is named by its root, which is the same wherever it lies.
func (z *zone) Write(k uint32, c *avlstar.Chunk) error {
	leaves := statesync.Leaves(z.manifest, k, c)
	root := c.Root().Hash
	err := z.restore.Add(storage.RunID(root[:]), func(yield func(storage.Leaf) bool) {
		for l := range leaves {
			if !yield(storage.Leaf(l)) {
				return
			}
		}
	})
	if err == nil && z.written.Add(1) == int64(len(z.manifest.Entries)) {
		z.complete()
	}
	return err
}

func (z *zone) Commit(height int64, v *avlstar.Version) error {
	hash := v.AppHash()
	return z.restore.Commit(storage.Meta{Height: height, AppHash: hash[:], ChunkBytes: v.ChunkBytes(), ChainID: chainID})
}

func (z *zone) Abort() error { return z.restore.Abort() }

func (z *zone) close() error { return z.state.Close() }
