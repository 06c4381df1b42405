package statesync

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/starling-kv/starling/avlstar"
)

// Target receives a restored state. Begin is called first, Commit or Abort last. Write may be
// called concurrently, at most once per chunk, and never concurrently with the other methods.
// Errors are local failures (such as a full disk), never a peer's.
type Target interface {
	// Begin discards any existing state, complete or not, and prepares for the state that m
	// describes.
	Begin(height int64, m *avlstar.Manifest) error
	// Write stores verified chunk k. It need not be durable before Commit. During the call, c.Bytes
	// has the records to store, and Leaves yields them with the height of the first record.
	Write(k uint32, c *avlstar.Chunk) error
	// Commit makes v, assembled from all chunks, the state of this node: durable and published once
	// it returns nil. It retains v if it keeps it. It may refuse with ErrWrongInterval. Abort
	// follows every error.
	Commit(height int64, v *avlstar.Version) error
	// Abort discards everything written, so that the node stays empty.
	Abort() error
}

// Builder is a Target that builds the version itself from the written chunks, so that a state
// larger than memory can be restored. The Restorer then keeps no chunks.
type Builder interface {
	Target
	// Build is called once all chunks are written, before Commit. Its result is checked against the
	// manifest and passed to Commit; the caller releases it.
	Build() (*avlstar.Version, error)
}

// Resumer is a Target whose unfinished restore survives a restart and can switch to another
// snapshot. Its stored chunks are verified like chunks of peers.
type Resumer interface {
	Target
	// Continue is Begin without discarding the chunks of an unfinished restore. It stores m with
	// the app hash that m was verified against.
	Continue(height int64, m *avlstar.Manifest) error
	// Stored returns the records of chunk k of the manifest, as a chunk, or nil if they were not
	// written or cannot be read. It may be called concurrently.
	Stored(k uint32) []byte
	// Forget removes whatever is stored in place of chunk k, so that Write may be called for it. It
	// does nothing if nothing is stored. It is called before the first Write and may be called
	// concurrently.
	Forget(k uint32) error
}

var (
	// ErrWrongInterval is returned by Target.Commit if the snapshot interval in the restored
	// state's parameters does not allow a snapshot at its height: no honest peer offers that
	// snapshot.
	ErrWrongInterval = errors.New("the state's parameters allow no snapshot at this height")
	// ErrOver: the restore was committed or aborted.
	ErrOver = errors.New("the restore is over")
	// ErrIncomplete: chunks are missing.
	ErrIncomplete = errors.New("chunks are missing")
)

// Restorer assembles the chunks of one snapshot into a state in a Target, all or nothing. Chunks
// may arrive from any source and in any order. Only the Restorer tracks which chunks are written or
// being written; the layers below just reject violations. Its methods may be called concurrently.
type Restorer struct {
	target  Target
	builder Builder // target, if it is a Builder; otherwise nil
	// assembler assembles the tree as chunks arrive; nil if there is a builder.
	assembler *avlstar.Assembler
	height    int64
	manifest  *avlstar.Manifest
	want      avlstar.Commitment
	keep      bool         // written chunks stay after a failure, see ContinueRestore
	free      func([]byte) // see Recycle; nil: unused

	life sync.RWMutex // held for reading while a chunk is accepted, for writing to end the restore
	mu   struct {
		sync.Mutex
		writing []bool // being written to the target, or written
		written []bool
		missing int
		moved   sync.Cond // a chunk was written, or writing failed
		failed  error     // target error: nothing can be accepted any more
		over    bool
	}
}

// BeginRestore starts to restore the state after block height. m must have been verified against
// that state's app hash.
func BeginRestore(target Target, height int64, m *avlstar.Manifest) (*Restorer, error) {
	want, err := m.Commitment()
	if err != nil {
		return nil, fmt.Errorf("restoring height %d: %w", height, err)
	}
	if err := target.Begin(height, m); err != nil {
		return nil, fmt.Errorf("restoring height %d: begin: %w", height, err)
	}
	return newRestorer(target, height, m, want), nil
}

func newRestorer(target Target, height int64, m *avlstar.Manifest, want avlstar.Commitment) *Restorer {
	r := &Restorer{target: target, height: height, manifest: m, want: want}
	if r.builder, _ = target.(Builder); r.builder == nil {
		r.assembler = avlstar.NewAssembler(m)
	}
	r.mu.moved.L = &r.mu
	r.mu.writing, r.mu.written = make([]bool, len(m.Entries)), make([]bool, len(m.Entries))
	r.mu.missing = len(m.Entries)
	return r
}

// ContinueRestore is like BeginRestore, but keeps the chunks that an unfinished restore has in
// common with m. It verifies each stored chunk again. progress, if not nil, is called after each
// chunk was checked, not concurrently. If ctx ends, ContinueRestore stops and leaves the target as
// it is, as do later failures of the target.
func ContinueRestore(ctx context.Context, target Resumer, height int64, m *avlstar.Manifest, progress func(done int)) (*Restorer, error) {
	want, err := m.Commitment()
	if err == nil {
		err = target.Continue(height, m)
	}
	if err != nil {
		return nil, fmt.Errorf("restoring height %d: continue: %w", height, err)
	}
	r := newRestorer(target, height, m, want)
	r.keep = true
	var (
		readers errgroup.Group
		told    sync.Mutex
		done    int // guarded by told
	)
	readers.SetLimit(runtime.GOMAXPROCS(0))
	for k := range m.Entries {
		if ctx.Err() != nil {
			break
		}
		readers.Go(func() error {
			r.stored(target, uint32(k))
			if progress != nil {
				told.Lock()
				defer told.Unlock()
				done++
				progress(done)
			}
			return nil
		})
	}
	_ = readers.Wait() // a failure ends the restore, see Accept
	return r, ctx.Err()
}

// stored checks whether the target has chunk k. It removes anything else stored in its place, so
// that the chunk can be written.
func (r *Restorer) stored(target Resumer, k uint32) {
	c := r.readBack(target, k)
	var err error
	if c != nil {
		err = r.assemble(k, c)
	} else if err = target.Forget(k); err != nil {
		err = fmt.Errorf("restoring height %d: remove invalid chunk %d: %w", r.height, k, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err != nil:
		r.mu.failed = err
	case c != nil:
		r.has(k)
	}
}

// readBack returns chunk k from the target, verified, or nil if it is missing or invalid.
func (r *Restorer) readBack(target Resumer, k uint32) *avlstar.Chunk {
	data := target.Stored(k)
	if data == nil {
		return nil
	}
	c, err := r.manifest.VerifyChunk(k, data)
	if err != nil {
		return nil
	}
	return c
}

// assemble adds a verified and stored chunk to the tree.
func (r *Restorer) assemble(k uint32, c *avlstar.Chunk) error {
	if r.assembler == nil {
		return nil
	}
	if err := r.assembler.Add(k, c); err != nil {
		return fmt.Errorf("restoring height %d: %w", r.height, err)
	}
	return nil
}

// has records chunk k as written. The caller holds r.mu.
func (r *Restorer) has(k uint32) {
	r.mu.writing[k], r.mu.written[k] = true, true
	r.mu.missing--
}

// Stored reads back and verifies chunk k if it was accepted and the target is a Resumer; otherwise
// it returns nil. It must not be called after Commit or Leave.
func (r *Restorer) Stored(k uint32) *avlstar.Chunk {
	resumer, ok := r.target.(Resumer)
	if _, missing := r.Want(k); !ok || missing {
		return nil
	}
	return r.readBack(resumer, k)
}

// Leave ends the restore and keeps the written chunks in the target, for a later ContinueRestore.
func (r *Restorer) Leave() {
	r.life.Lock()
	defer r.life.Unlock()
	_ = r.end(nil) // cannot fail, since nothing is aborted
}

// Recycle sets a function that receives the slices given to Accept once nothing refers to them. It
// must be called before Accept. free is called concurrently, at most once per slice.
func (r *Restorer) Recycle(free func(data []byte)) {
	r.free = free
	if r.assembler != nil {
		r.assembler.Free = free
	}
}

// Want returns the length of chunk k in bytes and whether the chunk is missing. Data of another
// length is not the chunk.
func (r *Restorer) Want(k uint32) (bytes uint64, missing bool) {
	if int64(k) >= int64(len(r.manifest.Entries)) {
		return 0, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.manifest.Entries[k].Root.Bytes, !r.mu.written[k]
}

// Paged reports whether the target builds the version from the written chunks (Builder), because
// the state may be larger than memory.
func (r *Restorer) Paged() bool { return r.builder != nil }

// Missing returns the number of missing chunks.
func (r *Restorer) Missing() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.missing
}

// Accept verifies data as chunk k and writes it to the target. The caller must not modify data
// until it comes back (Recycle). An avlstar.ErrInvalidChunk error means that data is not that
// chunk, and has no other effect. Any other error is a local failure and ends the restore. A chunk
// that is written or being written is not verified again: Accept waits until it is written, and
// fresh is false.
func (r *Restorer) Accept(k uint32, data []byte) (fresh bool, err error) {
	r.life.RLock()
	defer r.life.RUnlock()
	if int64(k) >= int64(len(r.manifest.Entries)) {
		return false, fmt.Errorf("chunk %d of %d: %w: no such index", k, len(r.manifest.Entries), avlstar.ErrInvalidChunk)
	}
	if open, err := r.accepting(k); !open {
		r.back(data)
		return false, err
	}
	c, err := r.manifest.VerifyChunk(k, data)
	if err != nil {
		return false, fmt.Errorf("chunk %d of %d: %w", k, len(r.manifest.Entries), err)
	}
	if mine, err := r.claim(k); !mine {
		c.Done()
		r.back(data)
		return false, err
	}
	if err = r.target.Write(k, c); err != nil {
		err = fmt.Errorf("restoring height %d: write chunk %d: %w", r.height, k, err)
	} else {
		err = r.assemble(k, c)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.mu.moved.Broadcast()
	if err != nil {
		r.mu.failed = err
		return false, err
	}
	r.has(k)
	if r.assembler == nil {
		c.Done()
		r.back(data)
	}
	return true, nil
}

// back returns data, which must be unreferenced, to the function set by Recycle.
func (r *Restorer) back(data []byte) {
	if r.free != nil {
		r.free(data)
	}
}

func (r *Restorer) accepting(k uint32) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.mu.over:
		return false, fmt.Errorf("restoring height %d: %w", r.height, ErrOver)
	case r.mu.failed != nil:
		return false, r.mu.failed
	case !r.mu.writing[k]:
		return true, nil
	}
	return false, r.written(k)
}

// written waits until another goroutine has written chunk k, so that the chunk is no longer missing
// when Accept returns. The caller holds r.mu.
func (r *Restorer) written(k uint32) error {
	for !r.mu.written[k] && r.mu.failed == nil {
		r.mu.moved.Wait()
	}
	return r.mu.failed
}

// claim makes the caller the writer of chunk k. If two valid copies arrive together, one is
// dropped.
func (r *Restorer) claim(k uint32) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.writing[k] {
		return false, r.written(k)
	}
	r.mu.writing[k] = true
	return true, nil
}

// Commit assembles the tree, makes it the state of the target and returns it; the caller releases
// it. After an error the restore is over, and the target is empty unless ContinueRestore started
// it.
func (r *Restorer) Commit() (*avlstar.Version, error) {
	r.life.Lock()
	defer r.life.Unlock()
	r.mu.Lock()
	missing, failed, over := r.mu.missing, r.mu.failed, r.mu.over
	r.mu.Unlock()
	switch {
	case over:
		return nil, fmt.Errorf("restoring height %d: %w", r.height, ErrOver)
	case failed != nil:
		return nil, failed
	case missing > 0:
		return nil, fmt.Errorf("restoring height %d: %w: %d of %d", r.height, ErrIncomplete, missing, len(r.manifest.Entries))
	}
	v, err := r.build()
	if err == nil {
		if v.Commitment() != r.want {
			err = errors.New("the assembled tree does not match the manifest")
		} else {
			err = r.target.Commit(r.height, v)
		}
		if err != nil {
			v.Release()
		}
	}
	if err != nil {
		abort := r.target.Abort
		if r.keep && !errors.Is(err, ErrWrongInterval) {
			abort = nil
		}
		return nil, errors.Join(fmt.Errorf("restoring height %d: %w", r.height, err), r.end(abort))
	}
	return v, r.end(nil) // the target is committed, so nothing is aborted
}

func (r *Restorer) build() (*avlstar.Version, error) {
	if r.builder != nil {
		return r.builder.Build()
	}
	return r.assembler.Finish()
}

// Abort leaves the target empty. After Commit or Abort it does nothing.
func (r *Restorer) Abort() error {
	r.life.Lock()
	defer r.life.Unlock()
	return r.end(r.target.Abort)
}

// end marks the restore as over and releases the chunks. The caller holds r.life.
func (r *Restorer) end(abort func() error) error {
	r.mu.Lock()
	over := r.mu.over
	r.mu.over = true
	r.mu.written, r.assembler = make([]bool, len(r.manifest.Entries)), nil
	r.mu.Unlock()
	if over || abort == nil {
		return nil
	}
	if err := abort(); err != nil {
		return fmt.Errorf("restoring height %d: abort: %w", r.height, err)
	}
	return nil
}
