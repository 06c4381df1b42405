package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/rangestore"
	"github.com/starling-kv/starling/transport"
)

// Headers returns app hashes that headers prove. It may be called concurrently.
type Headers interface {
	// AppHash returns the app hash of the state after a block, which the header of the next height
	// contains. ok is false until that header is proved. It does not block.
	AppHash(height int64) (hash avlstar.Hash, ok bool)
}

// Options configure a replica.
type Options struct {
	Range   avlstar.KeyRange
	Store   *rangestore.Store // the range's state on disk; Replica.Close closes it
	Log     *RedoLog          // of the node; the caller closes it after all replicas
	Headers Headers
	Limits  Limits
	// Known reports whether a sender is one of those that the operator has named: the updates of
	// others make room for its updates. nil: no sender is.
	Known func(transport.ID) bool
	// Named bounds the waiting updates of these senders, and Strangers those of all others, for all
	// replicas of a node; nil: no bound but Limits.
	Named, Strangers *Shares
	// ServeHeights is the number of recent heights served; default 64. It should exceed the
	// greatest lag of updates, so that replicas at different heights have some heights in common.
	ServeHeights int
	// ServeBytes limits the memory that serving older heights takes: data that only they need, and
	// changes that are not written to the store yet. Default 256 MiB. The newest height is always
	// served.
	ServeBytes uint64
	// LogBytes limits the files of the log that the range needs, with what other ranges have in
	// them; default 1 GiB. Beyond it, the replica serves fewer heights.
	LogBytes int64
	// ScrubRate is the rate, in bytes of leaf records per second, at which the state on disk is
	// read and verified; 0: it is not.
	ScrubRate int64
	// SnapshotInterval is the number of blocks between the heights of which there are snapshots. It
	// makes DiskBytes of these count a record that is written often once; 0: it counts as often.
	SnapshotInterval int64
	// Loading, if not nil, is called from time to time while Open reads the stored state, with the
	// number of leaves read.
	Loading func(leaves uint64)
	// Verdict, if not nil, is called with the sender of an invalid update (ErrFalse, dsm.ErrSum) or
	// of a slow one (ErrSlow, which proves nothing). Receive and Advance call it, possibly
	// concurrently.
	Verdict func(Verdict)
}

func (o *Options) setDefaults() {
	o.ServeHeights = orDefault(o.ServeHeights, 64)
	if o.ServeBytes == 0 {
		o.ServeBytes = 256 << 20
	}
	o.LogBytes = orDefault(o.LogBytes, 1<<30)
	if o.Loading == nil {
		o.Loading = func(uint64) {}
	}
}

// Verdict names the sender of an update and what is wrong with the update.
type Verdict struct {
	Sender transport.ID
	Range  avlstar.KeyRange
	Height int64
	Err    error
}

// Replica keeps one range. It serves the versions of the recent heights. Its store has the oldest
// of them, and the log all updates since the store's durable state:
//
//	height   … 95      96      97 … 103    104
//	log          │  u96     u97  …  u103   u104      synced before a height is served
//	versions     │                  v103 … v104      in memory, without the pages that the store has
//	store      durable ── waits ──► v103             each version follows when the one before retires
//
// So a replica that was killed serves the same heights again after it has replayed the log.
//
// Receive, At and Claim may be called concurrently with all methods. Concurrent calls of Advance
// are serialized, and so are those of Scrub.
type Replica struct {
	o         Options
	id        RangeID
	recovered Recovered
	traffic   traffic

	advancing sync.Mutex // held by Advance
	truncated int64      // the log was truncated to this height; guarded by advancing
	fresh     fresh      // guarded by advancing
	scrubbing sync.Mutex // held by Scrub: the store has one scrubber

	mu struct {
		sync.Mutex
		versions []version // ascending without gaps; only Advance and shorten change it
		// snapshots is the number of open snapshots by height. The store keeps their pages.
		snapshots map[int64]int
		waiting   *waiting
		failed    error // log, store or tree error: no further updates are accepted
		closed    bool
	}
}

// version is the range's state after a block.
type version struct {
	height  int64
	partial *avlstar.Partial // holds a reference
	// changes are those of the block, until the version is written to the store. bytes is their
	// size.
	changes []avlstar.Change
	bytes   uint64
	// put is the total size of the records that all blocks since Open put into the range. A record
	// in fresh counts once, or not if it was deleted.
	put uint64
}

// Receive adds a part of an update of this range, from a sender at a host, and returns the update's
// progress. On ErrFarAhead and ErrFull the answer must be sent too; the sender then tries again
// later. Other errors refuse the part.
func (r *Replica) Receive(sender transport.ID, host string, p dsm.UpdatePart) (dsm.UpdateAnswer, error) {
	have, verdicts, answer, err := r.receive(source{sender, host}, p)
	for _, v := range verdicts {
		r.verdict(v)
	}
	answer.Have = have
	if err != nil {
		err = fmt.Errorf("storagenode: update of height %d: %w", p.Height, err)
	}
	return answer, err
}

func (r *Replica) receive(from source, p dsm.UpdatePart) (have uint32, verdicts []Verdict, answer dsm.UpdateAnswer, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.failure(); err != nil {
		return 0, nil, answer, err
	}
	w := r.mu.waiting
	have, err = w.add(time.Now(), from, p)
	if errors.Is(err, dsm.ErrSum) {
		w.refute(from.sender)
		verdicts = append(verdicts, Verdict{from.sender, r.o.Range, p.Height, err})
	}
	for _, s := range w.takeSlow() {
		verdicts = append(verdicts, Verdict{s.sender, r.o.Range, s.height, ErrSlow})
	}
	return have, verdicts, dsm.UpdateAnswer{Durable: w.next - 1, Needs: w.needs()}, err
}

// failure returns why updates are no longer accepted. The caller holds mu.
func (r *Replica) failure() error {
	if r.mu.closed {
		return ErrClosed
	}
	return r.mu.failed
}

// serves reports whether the replica accepts updates.
func (r *Replica) serves() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failure() == nil
}

// ErrClosed: the replica was closed.
var ErrClosed = errors.New("the replica is closed")

func (r *Replica) verdict(v Verdict) {
	if r.o.Verdict != nil {
		r.o.Verdict(v)
	}
}

// Advance applies waiting updates whose result is proved: it replays an update, logs it durably,
// and then serves its height. It returns the number of new heights. Call it after Receive and after
// a header was proved. An error of the log or of the tree is final: the replica still serves the
// heights that it has, but accepts no updates until it is opened again.
func (r *Replica) Advance() (n int, err error) {
	r.advancing.Lock()
	defer r.advancing.Unlock()
	for {
		switch more, err := r.advance(); {
		case err != nil:
			return n, err
		case !more:
			return n, nil
		}
		n++
	}
}

func (r *Replica) advance() (more bool, err error) {
	r.mu.Lock()
	if err := r.failure(); err != nil {
		r.mu.Unlock()
		return false, err
	}
	r.mu.waiting.expireNow() // also where no message arrives any more
	base := r.newest()
	r.mu.Unlock()
	if err := r.compare(base); err != nil {
		return false, r.fail(err)
	}
	hash, proved := r.o.Headers.AppHash(base.height + 1)
	if !proved {
		return false, nil
	}
	for {
		r.mu.Lock()
		a, ok := r.mu.waiting.candidate()
		r.mu.Unlock()
		if !ok {
			return false, nil
		}
		v, err := r.replay(base, hash, a.update)
		if errors.Is(err, ErrFalse) {
			r.refute(a, err)
			continue
		}
		if err == nil {
			err = r.append(v, a.update)
		}
		if err != nil {
			return false, r.fail(fmt.Errorf("storagenode: update of height %d: %w", a.height, err))
		}
		r.publish(v)
		if err := r.retire(r.o.ServeHeights); err != nil {
			return false, r.fail(fmt.Errorf("storagenode: the state on disk: %w", err))
		}
		return true, nil
	}
}

// compare checks a version against its header, if that is proved. Without this check, a replica
// with the state of another chain would reject every honest update as false.
func (r *Replica) compare(v version) error {
	hash, proved := r.o.Headers.AppHash(v.height)
	if got := v.partial.AppHash(); proved && hash != got {
		return fmt.Errorf("storagenode: %w: the state of height %d has app hash %s, the header has %s", rangestore.ErrOther, v.height, got, hash)
	}
	return nil
}

// newest returns the newest version. It stays valid while the caller holds mu or advancing.
func (r *Replica) newest() version { return r.mu.versions[len(r.mu.versions)-1] }

// replay returns the version after an update. ErrFalse: the update does not lead to the app hash.
func (r *Replica) replay(base version, hash avlstar.Hash, update []byte) (version, error) {
	u, err := avlstar.DecodeUpdateFrom(base.partial.Commitment(), hash, dsm.MaxChanges, update)
	if err != nil {
		return version{}, fmt.Errorf("%w: %w", ErrFalse, err)
	}
	v, err := r.apply(base, u, len(update))
	if errors.Is(err, avlstar.ErrOtherState) {
		return version{}, fmt.Errorf("%w: %w", ErrFalse, err)
	}
	return v, err
}

// apply returns the version after an update of a length in bytes. ErrDamaged: the store does not
// have a page of the base, or has other bytes.
func (r *Replica) apply(base version, u avlstar.Update, length int) (version, error) {
	p, err := base.partial.Replay(r.o.Range, u)
	if err != nil {
		return version{}, damaged(err)
	}
	v := version{height: base.height + 1, partial: p, bytes: uint64(length), put: base.put}
	if r.o.SnapshotInterval > 0 && base.height%r.o.SnapshotInterval == 0 {
		r.fresh.clear()
	}
	for _, c := range u.Changes {
		v.changes = append(v.changes, c.Change)
		if !r.o.Range.Contains(c.Key) {
			continue
		}
		var size uint64
		if c.Value != nil {
			size = record.Bytes(len(c.Key), len(c.Value))
		}
		v.put += size
		if r.o.SnapshotInterval > 0 {
			v.put -= r.fresh.put(c.Key, size)
		}
	}
	return v, nil
}

// damaged returns err as an ErrDamaged if the store does not have a page, or has other bytes.
func damaged(err error) error {
	if errors.Is(err, storage.ErrNoPage) || errors.Is(err, storage.ErrCorrupt) {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return err
}

func (r *Replica) refute(a arrived, err error) {
	r.mu.Lock()
	r.mu.waiting.refute(a.from.sender)
	r.mu.Unlock()
	r.verdict(Verdict{a.from.sender, r.o.Range, a.height, err})
}

// append durably logs the update that led to v. It releases v on an error.
func (r *Replica) append(v version, update []byte) error {
	err := r.o.Log.Append(r.id, v.height, update)
	if err != nil {
		v.partial.Release()
	}
	return err
}

func (r *Replica) fail(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.failed == nil {
		r.mu.failed = err
	}
	return err
}

// publish starts to serve a height.
func (r *Replica) publish(v version) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.versions = append(r.mu.versions, v)
	r.mu.waiting.advance(v.height)
	r.traffic.changes.Add(uint64(len(v.changes)))
}

// retire stops serving the oldest heights until the limits hold, and at most so many are served. It
// writes each next version to the store, which may wait for the disk, and shortens the log. The
// caller holds advancing.
func (r *Replica) retire(heights int) error {
	for {
		r.mu.Lock()
		if !r.beyond(heights) {
			r.mu.Unlock()
			break
		}
		old, next := r.mu.versions[0], r.mu.versions[1]
		r.mu.Unlock()
		if err := r.o.Store.Commit(next.height, next.partial, old.partial, next.changes); err != nil {
			return damaged(err) // a boundary proof reads the pages at the edges
		}
		r.mu.Lock()
		r.mu.versions = slices.Delete(r.mu.versions, 0, 1)
		r.mu.versions[0].changes, r.mu.versions[0].bytes = nil, 0
		r.mu.Unlock()
		old.partial.Release()
	}
	r.o.Store.Trim(r.used())
	return r.truncate()
}

// truncate drops the updates from the log that the durable state has. The caller holds advancing.
func (r *Replica) truncate() error {
	durable, ok := r.o.Store.Durable()
	if !ok || durable <= r.truncated {
		return nil
	}
	r.truncated = durable
	return r.o.Log.Truncate(r.id, durable)
}

// logIsLong reports whether the files of the log that the range needs exceed the limit.
func (r *Replica) logIsLong() bool { return r.o.Log.NeededBytes(r.id) > r.o.LogBytes }

// shorten shortens the part of the log that the range needs, if it is too long: it serves fewer
// heights, at least the newest, and writes the others to the store. A range that waits for an
// update, or changes little, would otherwise keep the updates of all other ranges.
func (r *Replica) shorten(ctx context.Context) error {
	r.advancing.Lock()
	defer r.advancing.Unlock()
	for r.logIsLong() {
		r.mu.Lock()
		err, n, newest := r.failure(), len(r.mu.versions), int64(0)
		if n > 0 {
			newest = r.newest().height
		}
		r.mu.Unlock()
		if err != nil {
			return nil // Server.boundLog forgets its updates
		}
		if n == 1 && r.truncated == newest {
			return nil
		}
		if err := r.retire(max(1, n/2)); err != nil {
			return r.fail(err)
		}
		if err := r.o.Store.Flush(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return r.fail(err)
		}
		if err := r.truncate(); err != nil {
			return r.fail(err)
		}
	}
	return nil
}

// beyond reports whether the versions are beyond the limits. The newest one never is. The caller
// holds mu.
func (r *Replica) beyond(heights int) bool {
	switch n := len(r.mu.versions); {
	case n <= 1:
		return false
	case n > heights:
		return true
	}
	return r.servedBytes() > r.o.ServeBytes
}

// servedBytes returns the memory that counts toward Options.ServeBytes. The caller holds mu.
func (r *Replica) servedBytes() (bytes uint64) {
	for i, v := range r.mu.versions {
		bytes += v.bytes
		// A height without changes has the version of the height before.
		if i == 0 || v.partial.Version() != r.mu.versions[i-1].partial.Version() {
			bytes += v.partial.HeldBytes()
		}
	}
	return bytes
}

// used returns the oldest height that is served, and the heights of open snapshots.
func (r *Replica) used() (oldest int64, snapshots []int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.versions[0].height, slices.Collect(maps.Keys(r.mu.snapshots))
}

// beginSnapshot is At for a snapshot: the pages of that height stay readable until endSnapshot.
func (r *Replica) beginSnapshot(height int64) (v version, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v, ok = r.at(height); ok {
		r.mu.snapshots[height]++
	}
	return v, ok
}

func (r *Replica) endSnapshot(height int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.snapshots[height]--; r.mu.snapshots[height] == 0 {
		delete(r.mu.snapshots, height)
	}
}

// Scrub reads and verifies the state on disk at the rate ScrubRate until ctx ends. Damage is
// ErrDamaged, and final, as for Advance.
func (r *Replica) Scrub(ctx context.Context) error {
	if r.o.ScrubRate <= 0 {
		return nil
	}
	r.scrubbing.Lock() // a Server that is being replaced ends its call
	defer r.scrubbing.Unlock()
	err := r.o.Store.Scrub(ctx, func() *avlstar.Partial { v, _ := r.latest(); return v.partial }, r.o.ScrubRate)
	if err == nil {
		return nil
	}
	if errors.Is(err, storage.ErrCorrupt) {
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return r.fail(fmt.Errorf("storagenode: scrub: %w", err))
}

// latest returns the newest version with a reference that the caller releases; false: the replica
// is closed.
func (r *Replica) latest() (v version, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.mu.versions) == 0 {
		return v, false
	}
	return r.at(r.newest().height)
}

// At returns the range's state after a block with a reference that the caller releases. ok is false
// if that height is not served, or no longer.
func (r *Replica) At(height int64) (p *avlstar.Partial, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.at(height)
	return v.partial, ok
}

// at is At for a caller that holds mu.
func (r *Replica) at(height int64) (v version, ok bool) {
	if len(r.mu.versions) == 0 {
		return v, false
	}
	i := height - r.mu.versions[0].height
	if i < 0 || i >= int64(len(r.mu.versions)) {
		return v, false
	}
	v = r.mu.versions[i]
	v.partial.Retain()
	return v, true
}

// Claim returns the replica's claim.
func (r *Replica) Claim() dsm.Claim {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := dsm.Claim{Range: rangeOf(r.o.Range)}
	// Height 0, before the first block, is never claimed.
	if n := len(r.mu.versions); n > 0 && r.mu.versions[n-1].height > 0 {
		c.Oldest, c.Newest = max(1, r.mu.versions[0].height), r.mu.versions[n-1].height
		c.Durable = c.Newest
	}
	if r.failure() == nil {
		c.Needs = r.mu.waiting.needs()
	}
	return c
}

// Newest returns the newest height of the replica, 0 before the first block. waits reports whether
// the update of the next height has arrived and waits for its header.
func (r *Replica) Newest() (height int64, waits bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, waits = r.mu.waiting.candidate()
	return r.mu.waiting.next - 1, waits
}

// Waiting returns the number and the total size of the waiting updates, complete or not.
func (r *Replica) Waiting() (updates, bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.mu.waiting.whole) + len(r.mu.waiting.begun), r.mu.waiting.bytes
}

// Sizes returns the bytes of the range's state on disk, and of its tree in memory, in use or not.
func (r *Replica) Sizes() (disk, memory uint64) {
	if v, ok := r.latest(); ok {
		m := v.partial.Memory()
		memory = m.NodeBytes + m.LeafBytes + m.IndexBytes
		v.partial.Release()
	}
	return r.o.Store.Bytes(), memory
}

// Memory is the memory of a replica, in bytes.
type Memory struct {
	Tree    uint64 // of the newest height, with memory that is not in use
	Heights uint64 // counts toward Options.ServeBytes
	// Database is the memory of the database, and of changes that it does not have yet.
	Database uint64
}

// Memory returns the memory of the replica.
func (r *Replica) Memory() (m Memory) {
	v, ok := r.latest()
	if !ok {
		return m
	}
	defer v.partial.Release()
	m.Tree = v.partial.Memory().LatestBytes()
	r.mu.Lock()
	m.Heights = r.servedBytes()
	r.mu.Unlock()
	z := r.o.Store.Metrics()
	m.Database = uint64(z.CacheBytes) + z.MemTableBytes + uint64(z.LagBytes)
	return m
}

func rangeOf(r avlstar.KeyRange) avlstar.KeyRange {
	return avlstar.KeyRange{First: r.First, After: r.After}
}

// StopSettling lets an Advance return that waits until a state that was created is in the database.
// It is called before Close.
func (r *Replica) StopSettling() { r.o.Store.StopSettling() }

// Close releases all versions and closes the store. References held by callers of At stay valid.
func (r *Replica) Close() error {
	r.mu.Lock()
	closed := r.mu.closed
	r.mu.closed = true
	if r.mu.waiting != nil {
		r.mu.waiting.close()
	}
	r.mu.Unlock()
	if closed {
		return nil
	}
	r.advancing.Lock() // waits for a running Advance
	defer r.advancing.Unlock()
	r.mu.Lock()
	for _, v := range r.mu.versions {
		v.partial.Release()
	}
	r.mu.versions = nil
	r.mu.Unlock()
	return r.o.Store.Close()
}
