package storagenode

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/p2p"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/node/rangemap"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/serve"
	"github.com/starling-kv/starling/storage/rangestore"
	"github.com/starling-kv/starling/transport"
)

const (
	offlineHeight   = 100 // of an offline node's first state
	offlineInterval = 10  // between its snapshots
)

// offline is a storage node without a network and a chain. Its ranges are in memory, and a test
// makes the blocks.
type offline struct {
	*Process
	t       *testing.T
	logs    *nodetest.LogBuffer
	store   vfs.FS
	version *avlstar.Version // the newest state; holds a reference
	height  int64
}

// newOffline returns a node with a state of 50 keys, and without a range.
func newOffline(t *testing.T) *offline {
	t.Helper()
	o := &offline{t: t, logs: new(nodetest.LogBuffer), store: vfs.NewMem(), height: offlineHeight}
	app := config.DefaultApp()
	app.Disk.MinFreeBytes, app.Disk.ScrubRate = 0, 900
	o.Process = &Process{
		config: &config.Config{Home: t.TempDir(), CometBFT: cfg.DefaultConfig(), App: app}, log: o.logs.Logger(t), young: fromGenesis, dialer: dials{},
		genesis: &cmttypes.GenesisDoc{ChainID: "test-chain", InitialHeight: 1}, nodeKey: &p2p.NodeKey{PrivKey: ed25519.GenPrivKey()},
		namedUpdates: server.NewShares(namedBytes), strangers: server.NewShares(strangersBytes), making: make(chan struct{}, 1),
		memory: rangestore.NewMemory(1 << 20), failed: make(chan error, 1),
	}
	o.config.CometBFT.SetRoot(o.config.Home)
	o.ctx, o.cancel = t.Context(), func() {}
	o.headers.init()
	o.metrics = newMetrics(o.Process)
	s := &snapshots{n: o.Process, interval: offlineInterval, keep: 2, limit: 1 << 30, wake: make(chan struct{}, 1)}
	s.mu.outlines = map[int64][]byte{}
	s.manager = statesync.NewManager(statesync.Options{Interval: offlineInterval, Keep: s.keep, OnDisk: s.onDisk})
	s.server = serve.New(serve.Options{Snapshots: s.manager, Parts: true})
	o.chunks = s
	var err error
	o.redo, err = server.OpenRedoLog(server.RedoOptions{FS: o.store, Dir: "log", Label: []byte("test-chain")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, o.redo.Close()) })
	empty, err := avlstar.Empty(512)
	require.NoError(t, err)
	var begin []avlstar.Change
	for i := range 50 {
		begin = append(begin, avlstar.Change{Key: offlineKey(i), Value: make([]byte, 30)})
	}
	o.version, err = empty.Apply(begin)
	require.NoError(t, err)
	empty.Release()
	t.Cleanup(func() { o.version.Release() })
	o.setMap(0)
	return o
}

func offlineKey(i int) []byte { return fmt.Appendf(nil, "key-%02d", i) }

func (o *offline) self() transport.Address {
	return transport.Address{ID: o.ID(), HostPort: "127.0.0.1:1"}
}

// setMap sets a map in which this node has all its ranges, or one of all keys if it has none.
func (o *offline) setMap(version uint64) *config.StorageNodes {
	o.t.Helper()
	ranges := []dsm.Placement{at(avlstar.KeyRange{}, o.self())}
	if len(o.mu.places) > 0 {
		ranges = nil
	}
	for _, p := range o.mu.places {
		ranges = append(ranges, at(p.keys, o.self()))
	}
	m := placed(o.t, version, ranges, nil, o.self())
	o.nodes.Store(m)
	return m
}

// add adds a range with the newest state, or without a state.
func (o *offline) add(keys avlstar.KeyRange, r role, state bool) *place {
	o.t.Helper()
	p := &place{keys: keys, role: r, dir: filepath.Join(rangesDir(o.config), folderOf(keys))}
	o.mu.places = append(o.mu.places, p)
	if !state {
		return p
	}
	store, err := rangestore.Open(rangestore.Options{Dir: folderOf(keys), FS: o.store, Keys: keys, ChainID: "test-chain", Memory: o.memory})
	require.NoError(o.t, err)
	boundary, err := o.version.Boundary(keys)
	require.NoError(o.t, err)
	require.NoError(o.t, store.Create(o.height, o.version.Commitment(), boundary, func(yield func(avlstar.Leaf, error) bool) {
		for l, err := range o.version.Leaves() {
			if (err != nil || keys.Contains(l.Key)) && !yield(l, err) {
				return
			}
		}
	}))
	p.replica, err = server.Open(o.t.Context(), o.replicaOptions(p, store))
	require.NoError(o.t, err)
	o.t.Cleanup(func() { require.NoError(o.t, p.replica.Close()) })
	p.height = o.height
	return p
}

// serveAll serves the ranges.
func (o *offline) serveAll() {
	o.t.Helper()
	maps, err := rangemap.New(rangemap.Options{
		Logger: o.log, Home: o.config.Home, File: "map.toml", ChainID: "test-chain", Self: o.ID(), Dialer: o.dialer, Peers: o.conns,
		Use: func(*config.StorageNodes) error { return nil },
	}, o.nodes.Load())
	require.NoError(o.t, err)
	o.maps = maps
	ctx := o.ctx
	o.ctx = closedContext() // the test advances the replicas
	require.NoError(o.t, o.changed())
	o.wg.Wait()
	o.ctx = ctx
}

// prove adds headers up to a height. Those above the newest block have no app hash.
func (o *offline) prove(to int64) {
	o.headers.add(proved{height: to, time: time.Now()})
}

// block makes a block that writes a value of a key, and sends it to the given ranges.
func (o *offline) block(key []byte, length int, to ...*place) {
	o.t.Helper()
	changes := []avlstar.Change{{Key: key, Value: make([]byte, length)}}
	changes[0].Value[0] = byte(o.height) // so that the state changes
	after, err := o.version.Apply(changes)
	require.NoError(o.t, err)
	o.height++
	hash := after.AppHash()
	o.headers.add(proved{height: o.height + 1, appHash: hash[:], time: time.Now()})
	for _, p := range to {
		u, err := after.UpdateOf(o.version, p.keys, changes)
		require.NoError(o.t, err)
		b := u.Encode()
		_, err = p.replica.Receive("validator", "", dsm.PartOf(o.height, p.keys, b, sha256.Sum256(b), 0))
		require.NoError(o.t, err)
		_, err = p.replica.Advance()
		require.NoError(o.t, err)
	}
	o.version.Release()
	o.version = after
}
