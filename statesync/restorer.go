package statesync

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/starling-kv/starling/avlstar"
)

// Target is where a restored state goes. Begin comes first, Commit or Abort last; Write may be
// called concurrently, at most once for each chunk, and never together with the others. Errors are
// failures of our own (a full disk), never a peer's.
type Target interface {
	// Begin forgets whatever state there is, whole or half restored, and gets ready for the one
	// that m describes.
	Begin(height int64, m *avlstar.Manifest) error
	// Write takes verified chunk k. It need not be durable before Commit. c.Bytes has the records
	// to store, and Leaves yields them with the height of the first, during the call.
	Write(k uint32, c *avlstar.Chunk) error
	// Commit makes v, put together from all chunks, the state of this node: durable and published
	// when it returns nil. It retains v where it keeps it. It may refuse with ErrWrongInterval;
	// Abort follows every error.
	Commit(height int64, v *avlstar.Version) error
	// Abort forgets what was written, so that the node stays empty.
	Abort() error
}

// Builder is a Target that makes the version itself, of what it wrote: so that a state need not fit
// into memory to be restored. The Restorer keeps no chunk then.
type Builder interface {
	Target
	// Build is called once all chunks are written, before Commit. The version that it returns is
	// checked against the manifest and goes to Commit; the caller releases it.
	Build() (*avlstar.Version, error)
}

// Resumer is a Target whose unfinished restore survives the end of the process, and can be turned
// to another snapshot. What it has is verified like what a peer sends.
type Resumer interface {
	Target
	// Continue is Begin without forgetting what an unfinished restore wrote. It remembers m, beside
	// the app hash that it was verified against.
	Continue(height int64, m *avlstar.Manifest) error
	// Stored returns the records of chunk k of the manifest, as a chunk, if Write has had them; nil
	// if not, or if they cannot be read. It may be called concurrently.
	Stored(k uint32) []byte
	// Forget removes what there is of chunk k, which is not the chunk: Write may come for it. It
	// does nothing where there is nothing. It comes before the first Write, and may be called
	// concurrently.
	Forget(k uint32) error
}

var (
	// ErrWrongInterval is Target.Commit's answer to a state whose own parameters have another
	// snapshot interval than its height allows: no honest peer offers that snapshot.
	ErrWrongInterval = errors.New("the state's parameters allow no snapshot at this height")
	// ErrOver: the restore was committed or aborted.
	ErrOver = errors.New("the restore is over")
	// ErrIncomplete: chunks are missing.
	ErrIncomplete = errors.New("chunks are missing")
)

// Leaves yields the leaves of chunk k as a node stores them. Inside a chunk the first record has
// height 0; in the whole tree it has its boundary height, which stands in the manifest.
func Leaves(m *avlstar.Manifest, k uint32, c *avlstar.Chunk) iter.Seq[avlstar.Leaf] {
	return func(yield func(avlstar.Leaf) bool) {
		first := true
		for leaf := range c.Leaves() {
			if first && int(k) < len(m.Entries) {
				leaf.Height = m.Entries[k].BoundaryHeight
			}
			first = false
			if !yield(leaf) {
				return
			}
		}
	}
}

// Restorer turns the chunks of one snapshot into a state in a Target, all of it or nothing. Chunks
// may come from anywhere, in any order. It alone knows which chunks are written, and by whom: what
// lies below, down to the disk, only refuses what breaks that. Its methods may be called
// concurrently.
type Restorer struct {
	target  Target
	builder Builder // target, where it is one; else nil
	// assembler puts the tree together while chunks come, where there is no builder.
	assembler *avlstar.Assembler
	height    int64
	manifest  *avlstar.Manifest
	want      avlstar.Commitment
	keep      bool         // what was written stays after a failure, see ContinueRestore
	free      func([]byte) // see Recycle; nil: nobody

	life sync.RWMutex // held for reading while a chunk is accepted, for writing to end the restore
	mu   struct {
		sync.Mutex
		writing []bool // being written to the target, or written
		written []bool
		missing int
		moved   sync.Cond // when a chunk was written, or could not be
		failed  error     // of the target: nothing can be accepted any more
		over    bool
	}
}

// BeginRestore begins to restore the state after block height. m must have been verified against
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

// ContinueRestore is BeginRestore that keeps what an unfinished restore has in common with m. Each
// chunk that the target has is verified again; progress, if not nil, is called after each that was
// looked for, not concurrently. Ending ctx stops that, and leaves the target as it is; so do later
// failures of the target's.
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
	_ = readers.Wait() // failures end the restore, see Accept
	return r, ctx.Err()
}

// stored looks whether the target has chunk k. What it has and is not the chunk is removed, so that
// the chunk can be written.
func (r *Restorer) stored(target Resumer, k uint32) {
	c := r.readBack(target, k)
	var err error
	if c != nil {
		err = r.assemble(k, c)
	} else if err = target.Forget(k); err != nil {
		err = fmt.Errorf("restoring height %d: remove what is not chunk %d: %w", r.height, k, err)
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

// readBack returns chunk k as the target has it, verified; nil if that is not the chunk, or
// nothing.
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

// assemble makes a verified chunk, which is stored, part of the tree.
func (r *Restorer) assemble(k uint32, c *avlstar.Chunk) error {
	if r.assembler == nil {
		return nil
	}
	if err := r.assembler.Add(k, c); err != nil {
		return fmt.Errorf("restoring height %d: %w", r.height, err)
	}
	return nil
}

// has notes chunk k as written. The caller holds r.mu.
func (r *Restorer) has(k uint32) {
	r.mu.writing[k], r.mu.written[k] = true, true
	r.mu.missing--
}

// Stored reads back and verifies chunk k, if it was accepted and the target is a Resumer, else it
// returns nil. It is for the time before Commit and Leave.
func (r *Restorer) Stored(k uint32) *avlstar.Chunk {
	resumer, ok := r.target.(Resumer)
	if _, missing := r.Want(k); !ok || missing {
		return nil
	}
	return r.readBack(resumer, k)
}

// Leave ends the restore and leaves the target with what was written, for a ContinueRestore to
// come.
func (r *Restorer) Leave() {
	r.life.Lock()
	defer r.life.Unlock()
	_ = r.end(nil) // nothing is aborted, nothing fails
}

// Recycle sets who gets the bytes back that were given to Accept, once nothing refers to them. It
// must be called before Accept. free is called concurrently, at most once for each slice.
func (r *Restorer) Recycle(free func(data []byte)) {
	r.free = free
	if r.assembler != nil {
		r.assembler.Free = free
	}
}

// Want returns the length of chunk k in bytes, and whether it is missing. A chunk of another length
// need not be looked at.
func (r *Restorer) Want(k uint32) (bytes uint64, missing bool) {
	if int64(k) >= int64(len(r.manifest.Entries)) {
		return 0, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.manifest.Entries[k].Root.Bytes, !r.mu.written[k]
}

// Paged reports whether the target makes the version of what it wrote (Builder), since the state
// may be larger than memory.
func (r *Restorer) Paged() bool { return r.builder != nil }

// Missing returns how many chunks are still to come.
func (r *Restorer) Missing() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.missing
}

// Accept verifies data as chunk k and hands it to the target; data must not be changed afterwards,
// unless it comes back (Recycle).
// An error that is avlstar.ErrInvalidChunk means that these bytes are not that chunk, and costs
// nothing else; any other is our own failure and ends the restore. A chunk that is already there,
// or being written, is not looked at again: fresh is false, when it is there.
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

// back gives bytes back that nothing refers to.
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

// written waits until chunk k, which somebody else is writing, is written: then it is not missing
// any more when Accept returns. The caller holds r.mu.
func (r *Restorer) written(k uint32) error {
	for !r.mu.written[k] && r.mu.failed == nil {
		r.mu.moved.Wait()
	}
	return r.mu.failed
}

// claim makes the caller the one who writes chunk k: of two good copies that arrive together, one
// is dropped.
func (r *Restorer) claim(k uint32) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.writing[k] {
		return false, r.written(k)
	}
	r.mu.writing[k] = true
	return true, nil
}

// Commit puts the tree together, makes it the state of the target and returns it; the caller
// releases it. After an error the restore is over and the target empty.
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
			err = errors.New("the tree that was put together is not the manifest's")
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
	return v, r.end(nil) // without an error: nothing is aborted
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

// end marks the restore as over, once, and lets go of the chunks. The caller holds r.life.
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
