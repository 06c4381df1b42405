package syncbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/workload"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/treestore"
	"github.com/starling-kv/starling/transport/tcp"
)

// Parameters of a validator under load.
const (
	// stepsABlock makes blocks of 2,000 operations from the workload's steps of 1,000.
	stepsABlock = 2
	// snapshotEvery is the snapshot interval in blocks, for Starling and for the SDK.
	snapshotEvery = 10
)

// blockOf merges steps of the workload into one block, with the last change of each key.
func blockOf(w *workload.Workload) []workload.Change {
	var changes []workload.Change
	at := map[string]int{}
	for range stepsABlock {
		for _, c := range w.Next() {
			if i, there := at[string(c.Key)]; there {
				changes[i] = c
				continue
			}
			at[string(c.Key)] = len(changes)
			changes = append(changes, c)
		}
	}
	return changes
}

// validator commits blocks as a node does: tree, state store, and every ten blocks a pinned
// snapshot, which it serves. Snapshots are kept with a node's defaults.
type validator struct {
	work   *workload.Workload
	state  *storage.Zone
	store  *treestore.Store
	server *server
	newest *avlstar.Version
	height int64
}

func openValidator(b begin) (v *validator, err error) {
	v = &validator{}
	if v.work, err = workload.New(b.Spec, b.Blocks*stepsABlock); err != nil {
		return nil, err
	}
	if v.newest, err = avlstar.Empty(avlstar.DefaultChunkBytes); err != nil {
		return nil, err
	}
	if v.state, err = storage.Open(filepath.Join(b.Dir, "state"), storage.Options{}); err != nil {
		return nil, err
	}
	defaults := config.DefaultApp().Snapshots
	v.server = newServer(statesync.NewManager(statesync.Options{
		Interval: snapshotEvery, Keep: defaults.Keep, MaxBytes: defaults.MaxBytes, OnDisk: v.state.PinUses,
	}))
	v.store = treestore.New(treestore.Options{Zone: v.state, ChainID: chainID})
	v.store.SetSnapshots(v.server.snapshots)
	return v, nil
}

func (v *validator) close() error {
	// Closing the state store waits for blocks that hold versions.
	err := errors.Join(v.server.close(), v.state.Close())
	v.newest.Release()
	return err
}

func (v *validator) do(r request) (a answer, err error) {
	switch r.Op {
	case opLoad:
		for ; a.Done < r.N && !v.work.Loaded(); a.Done++ {
			if _, err := v.commit(v.work.Next()); err != nil {
				return a, err
			}
		}
		return a, nil
	case opServe:
		err = v.server.listen(tcp.Options{RatePerPeer: r.Rate}, nil)
		a.Target = v.server.target
		return a, err
	case opBlocks:
		if r.ResetPeak {
			harness.ResetPeak(os.Getpid())
		}
		return v.blocks(r.N, time.Duration(r.PauseMS)*time.Millisecond)
	}
	return a, fmt.Errorf("unknown request for a %s: %q", roleValidator, r.Op)
}

// blocks makes n blocks, one every pause. If a block takes longer, the next one starts immediately.
func (v *validator) blocks(n int, pause time.Duration) (a answer, err error) {
	runtime.GC()
	from := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for range n {
		changes := blockOf(v.work)
		<-timer.C
		timer.Reset(pause)
		nanos, err := v.commit(changes)
		if err != nil {
			return a, err
		}
		a.Nanos = append(a.Nanos, nanos)
		kept, _ := v.server.snapshots.Kept()
		a.Kept = a.Kept.most(Kept(kept))
	}
	a.Seconds = time.Since(from).Seconds()
	return a, nil
}

// commit measures a block from its changes until it is committed: app hash, write to the state
// store, and pinning of the snapshot.
func (v *validator) commit(changes []workload.Change) (nanos int64, err error) {
	given := make([]avlstar.Change, len(changes))
	for i, c := range changes {
		given[i] = avlstar.Change{Key: c.Key, Value: c.Value}
	}
	from := time.Now()
	next, err := v.newest.Apply(given) // sorts
	if err != nil {
		return 0, err
	}
	v.height++
	if err := v.store.Commit(v.height, next, v.newest, given); err != nil {
		next.Release()
		return 0, err
	}
	v.server.snapshots.Committed(v.height, next)
	v.state.Trim(v.server.snapshots.OldestServed(), v.server.snapshots.Held())
	v.newest.Release()
	v.newest = next
	return time.Since(from).Nanoseconds(), nil
}

// downloads are joiners that only download, because only the validator is measured. Each has its
// own connection and key.
type downloads struct {
	ctx    context.Context
	cancel context.CancelFunc
	stop   []func() // one for each running download; waits until it has ended
	bytes  atomic.Int64
	failed atomic.Pointer[error]
	probes *probes // nil: no newcomers request a status
}

func newDownloads() (*downloads, error) {
	d := &downloads{}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d, nil
}

func (d *downloads) close() {
	d.cancel()
	for _, stop := range d.stop {
		stop()
	}
	d.stop = nil
	if d.probes != nil {
		d.probes.end()
		d.probes = nil
	}
}

// do starts or stops downloads until r.N are running, and returns the total number of bytes
// received.
func (d *downloads) do(r request) (a answer, err error) {
	if r.Op != opDownload {
		return a, fmt.Errorf("unknown request for the %s: %q", roleDownload, r.Op)
	}
	for len(d.stop) > r.N {
		d.stop[len(d.stop)-1]()
		d.stop = d.stop[:len(d.stop)-1]
	}
	for len(d.stop) < r.N {
		stop, err := d.start(r.Target, loopback(downloadFrom+len(d.stop)), r.Probe)
		if err != nil {
			return a, err
		}
		d.stop = append(d.stop, stop)
	}
	switch {
	case r.Probe && d.probes == nil:
		d.probes = startProbes(d.ctx, r.Target)
	case !r.Probe && d.probes != nil:
		d.probes.end()
		d.probes = nil
	}
	if d.probes != nil {
		a.StatusMS, a.Refused = d.probes.since()
	}
	if failed := d.failed.Load(); failed != nil {
		return a, *failed
	}
	a.Bytes = d.bytes.Load()
	return a, nil
}

// inFlight is the number of chunks that a downloader requests at a time.
const inFlight = 4

// Downloader i has the address 127.0.0.(downloadFrom + i). A server limits its rate per host, so
// downloaders on one host would share one limit.
const downloadFrom = 50

// start starts a download from an address of this machine; stop ends it. If persist is set, the
// download reconnects after each error. Otherwise its error is returned with the next response.
func (d *downloads) start(t Target, from string, persist bool) (stop func(), err error) {
	dialer, err := dialFrom(from, chainID, nil)
	if err != nil {
		return nil, err
	}
	peers, err := t.addresses()
	if err != nil {
		return nil, err
	}
	once := func(ctx context.Context) error {
		conn, err := dialer.Dial(ctx, peers[0])
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }() // no longer used
		return downloadAll(ctx, conn, &d.bytes)
	}
	ctx, cancel := context.WithCancel(d.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			err := once(ctx)
			if ctx.Err() != nil {
				return
			}
			if !persist {
				d.failed.CompareAndSwap(nil, &err)
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(askAgain):
			}
		}
	}()
	return func() { cancel(); <-ended }, nil
}

// millis converts nanoseconds to milliseconds, in ascending order.
func millis(nanos []int64) []float64 {
	ms := make([]float64, 0, len(nanos))
	for _, n := range nanos {
		ms = append(ms, float64(n)/1e6)
	}
	slices.Sort(ms)
	return ms
}
