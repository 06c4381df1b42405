package syncbench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/bench/workload"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/transport/tcp"
)

// Of a validator under load.
const (
	// stepsABlock makes blocks of 2,000 operations, of the workload's versions of 1,000.
	stepsABlock = 2
	// snapshotEvery is the snapshot interval in blocks, Starling's and the SDK's.
	snapshotEvery = 10
	// holdFor is how long a snapshot stays that is asked for: long enough at this pace, where three minutes would be gigabytes.
	holdFor = time.Minute
)

// blockOf merges steps of the workload into one block: the last change of each key.
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

// validator commits blocks as a node does: tree, state zone, and a snapshot pinned every ten blocks, which it serves.
type validator struct {
	work    *workload.Workload
	state   *storage.State
	server  *server
	newest  *avlstar.Version
	height  int64
	pinning atomic.Bool // one waits to be stored; there is no second one meanwhile
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
	v.server = newServer(statesync.NewManager(statesync.Options{Interval: snapshotEvery, Keep: 2, Hold: holdFor}))
	return v, nil
}

func (v *validator) close() error {
	err := errors.Join(v.server.close(), v.state.Close()) // Close waits for blocks that hold versions
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
		return v.blocks(r.N, time.Duration(r.PauseMS)*time.Millisecond)
	}
	return a, fmt.Errorf("the %s does not know this request", roleValidator)
}

// blocks makes n blocks, one every pause; those that take longer follow each other at once.
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
	}
	a.Seconds = time.Since(from).Seconds()
	return a, nil
}

// commit is timed from the changes until the block is committed: app hash, handed over to the state zone, snapshot pinned.
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
	if err := v.store(next, given); err != nil {
		next.Release()
		return 0, err
	}
	v.server.snapshots.Committed(v.height, next)
	v.state.Trim(v.server.snapshots.OldestServed(), v.server.snapshots.Held())
	v.newest.Release()
	v.newest = next
	return time.Since(from).Nanoseconds(), nil
}

// store hands a block over to the state zone, as package node does.
func (v *validator) store(next *avlstar.Version, changes []avlstar.Change) error {
	hash, base, height := next.AppHash(), v.newest, v.height
	b := storage.Block{Meta: storage.Meta{Height: height, AppHash: hash[:], ChunkBytes: next.ChunkBytes(), ChainID: chainID}}
	for _, c := range changes {
		if c.Value == nil {
			b.Deletes = append(b.Deletes, c.Key)
		} else {
			b.Puts = append(b.Puts, storage.Leaf{Key: c.Key, Value: c.Value})
		}
	}
	b.Heights = func(yield func(storage.Height) bool) {
		for key, h := range next.NewInner(base) {
			if !yield(storage.Height{Key: key, Height: h}) {
				return
			}
		}
	}
	pins := v.server.snapshots.Due(height) && v.pinning.CompareAndSwap(false, true)
	if pins {
		b.PinData = func() []byte { return v.server.snapshots.PinData(height, next) }
	}
	next.Retain()
	base.Retain()
	b.Done = func() {
		next.Release()
		base.Release()
		if pins {
			v.pinning.Store(false)
		}
	}
	err := v.state.Write(b)
	if err != nil {
		b.Done()
	}
	return err
}

// downloads are joiners that only download: what a joiner does with a chunk is not the validator's work. Each has a connection and a key
// of its own.
type downloads struct {
	ctx    context.Context
	cancel context.CancelFunc
	stop   []func() // of each that is under way; waits for its end
	bytes  atomic.Int64
	failed atomic.Pointer[error]
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
}

// do starts or stops downloads until there are r.N, and says how many bytes have come in all.
func (d *downloads) do(r request) (a answer, err error) {
	if r.Op != opDownload {
		return a, fmt.Errorf("the %s do not know this request", roleDownload)
	}
	for len(d.stop) > r.N {
		d.stop[len(d.stop)-1]()
		d.stop = d.stop[:len(d.stop)-1]
	}
	for len(d.stop) < r.N {
		stop, err := d.start(r.Target)
		if err != nil {
			return a, err
		}
		d.stop = append(d.stop, stop)
	}
	if failed := d.failed.Load(); failed != nil {
		return a, *failed
	}
	a.Bytes = d.bytes.Load()
	return a, nil
}

// inFlight is how many chunks one asks for at a time.
const inFlight = 4

func (d *downloads) start(t Target) (stop func(), err error) {
	dialer, err := newDialer(t)
	if err != nil {
		return nil, err
	}
	peers, err := t.addresses()
	if err != nil {
		return nil, err
	}
	conn, err := dialer.Dial(d.ctx, peers[0])
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(d.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() { _ = conn.Close() }() // nobody asks it any more
		if err := downloadAll(ctx, conn, &d.bytes); err != nil && ctx.Err() == nil {
			d.failed.CompareAndSwap(nil, &err)
		}
	}()
	return func() { cancel(); <-ended }, nil
}

// millis are nanoseconds in milliseconds, ascending.
func millis(nanos []int64) []float64 {
	ms := make([]float64, 0, len(nanos))
	for _, n := range nanos {
		ms = append(ms, float64(n)/1e6)
	}
	slices.Sort(ms)
	return ms
}
