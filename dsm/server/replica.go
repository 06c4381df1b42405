package server

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
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
	Log     LogOptions
	Disk    Disk // Replica.Close closes it
	Headers Headers
	Limits  Limits
	// ServeHeights is the number of recent heights served; default 64. It should exceed the
	// greatest lag of updates, so that replicas at different heights have some heights in common.
	ServeHeights int
	// ServeBytes limits the memory that only older heights need; default 256 MiB. The newest height
	// is always served.
	ServeBytes uint64
	// Interval is the number of heights between two stored states, Keep the number of stored
	// states; defaults 1000 and 2. Keep-1 intervals must span at least ServeHeights-1 heights, so
	// that a replica serves that many heights after a restart.
	Interval int64
	Keep     int
	// Verdict, if not nil, is called with the sender of an invalid update (ErrFalse, dsm.ErrSum) or
	// of a slow one (ErrSlow, which proves nothing). Receive and Advance call it, possibly
	// concurrently.
	Verdict func(Verdict)
}

func (o *Options) setDefaults() error {
	o.ServeHeights = orDefault(o.ServeHeights, 64)
	if o.ServeBytes == 0 {
		o.ServeBytes = 256 << 20
	}
	o.Interval, o.Keep = orDefault(o.Interval, 1000), orDefault(o.Keep, 2)
	if int64(o.Keep-1)*o.Interval < int64(o.ServeHeights-1) {
		return fmt.Errorf("%d stored states at intervals of %d heights: a restarted replica could not serve %d heights; keep more states, or serve fewer heights",
			o.Keep, o.Interval, o.ServeHeights)
	}
	return nil
}

// Verdict names the sender of an update and what is wrong with the update.
type Verdict struct {
	Sender transport.ID
	Range  avlstar.KeyRange
	Height int64
	Err    error
}

// Replica keeps one range.
//
// Receive, At and Claim may be called concurrently with all methods. Concurrent calls of Advance
// are serialized, and so are those of Store.
type Replica struct {
	o Options

	advancing sync.Mutex // held by Advance
	storing   sync.Mutex // held by Store
	// logging guards log. It is held during file I/O.
	logging sync.Mutex
	log     *Log

	recovered Recovered

	mu struct {
		sync.Mutex
		versions []version // ascending without gaps; the last is the newest. Only Advance adds.
		waiting  *waiting
		due      *version // state to be stored; holds a reference
		failed   error    // log or tree error: no further updates are accepted
		closed   bool
	}
}

// version is the range's state after a block.
type version struct {
	height  int64
	partial *avlstar.Partial // holds a reference
}

// Receive adds a part of an update of this range and returns the update's progress. On ErrFarAhead
// and ErrFull the answer must be sent too; the sender then tries again later. Other errors refuse
// the part.
func (r *Replica) Receive(sender transport.ID, p dsm.UpdatePart) (dsm.UpdateAnswer, error) {
	have, verdicts, answer, err := r.receive(sender, p)
	for _, v := range verdicts {
		r.verdict(v)
	}
	answer.Have = have
	if err != nil {
		err = fmt.Errorf("storagenode: update of height %d: %w", p.Height, err)
	}
	return answer, err
}

func (r *Replica) receive(sender transport.ID, p dsm.UpdatePart) (have uint32, verdicts []Verdict, answer dsm.UpdateAnswer, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.failure(); err != nil {
		return 0, nil, answer, err
	}
	w := r.mu.waiting
	have, err = w.add(time.Now(), sender, p)
	if errors.Is(err, dsm.ErrSum) {
		w.refute(sender)
		verdicts = append(verdicts, Verdict{sender, r.o.Range, p.Height, err})
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
		return true, nil
	}
}

// compare checks a version against its header, if that is proved. Without this check, a replica
// with the state of another chain would reject every honest update as false.
func (r *Replica) compare(v version) error {
	hash, proved := r.o.Headers.AppHash(v.height)
	if got := v.partial.AppHash(); proved && hash != got {
		return fmt.Errorf("storagenode: %w: the state of height %d has app hash %s, the header has %s", ErrOther, v.height, got, hash)
	}
	return nil
}

// newest returns the newest version. It stays valid while the caller holds mu or advancing.
func (r *Replica) newest() version { return r.mu.versions[len(r.mu.versions)-1] }

// replay returns the version after an update. ErrFalse: the update does not lead to the app hash.
func (r *Replica) replay(base version, hash avlstar.Hash, update []byte) (version, error) {
	u, err := avlstar.DecodeUpdate(update)
	if err != nil {
		return version{}, fmt.Errorf("%w: %w", ErrFalse, err)
	}
	if got := u.To.AppHash(); got != hash {
		return version{}, fmt.Errorf("%w: it leads to app hash %s, the header has %s", ErrFalse, got, hash)
	}
	p, err := base.partial.Replay(r.o.Range, u)
	if errors.Is(err, avlstar.ErrOtherState) {
		return version{}, fmt.Errorf("%w: %w", ErrFalse, err)
	} else if err != nil {
		return version{}, err
	}
	return version{base.height + 1, p}, nil
}

func (r *Replica) refute(a arrived, err error) {
	r.mu.Lock()
	r.mu.waiting.refute(a.sender)
	r.mu.Unlock()
	r.verdict(Verdict{a.sender, r.o.Range, a.height, err})
}

// append durably logs the update that led to v. It releases v on an error.
func (r *Replica) append(v version, update []byte) error {
	r.logging.Lock()
	defer r.logging.Unlock()
	err := r.log.Append(v.height, update)
	if err != nil {
		v.partial.Release()
	}
	return err
}

func (r *Replica) fail(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.failed = err
	return err
}

// publish starts to serve a height and releases old heights beyond the limits.
func (r *Replica) publish(v version) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.versions = append(r.mu.versions, v)
	r.mu.waiting.advance(v.height)
	if v.height%r.o.Interval == 0 {
		if r.mu.due != nil {
			r.mu.due.partial.Release() // the newer state replaces it
		}
		v.partial.Retain()
		r.mu.due = &v
	}
	r.giveUp()
}

// giveUp releases the oldest versions until the limits hold. The caller holds mu.
func (r *Replica) giveUp() {
	bytes := uint64(0)
	for _, v := range r.mu.versions {
		bytes += v.partial.HeldBytes()
	}
	n := 0
	for ; len(r.mu.versions)-n > r.o.ServeHeights || bytes > r.o.ServeBytes && len(r.mu.versions)-n > 1; n++ {
		bytes -= min(bytes, r.mu.versions[n].partial.HeldBytes())
		r.mu.versions[n].partial.Release()
	}
	r.mu.versions = slices.Delete(r.mu.versions, 0, n)
}

// At returns the range's state after a block with a reference that the caller releases. ok is false
// if that height is not served, or no longer.
func (r *Replica) At(height int64) (p *avlstar.Partial, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.mu.versions) == 0 {
		return nil, false
	}
	i := height - r.mu.versions[0].height
	if i < 0 || i >= int64(len(r.mu.versions)) {
		return nil, false
	}
	p = r.mu.versions[i].partial
	p.Retain()
	return p, true
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

func rangeOf(r avlstar.KeyRange) avlstar.KeyRange {
	return avlstar.KeyRange{First: r.First, After: r.After}
}

// Close releases all versions and closes the files. References held by callers of At stay valid.
func (r *Replica) Close() error {
	r.mu.Lock()
	closed := r.mu.closed
	r.mu.closed = true
	r.mu.Unlock()
	if closed {
		return nil
	}
	r.advancing.Lock() // waits for a running Advance
	defer r.advancing.Unlock()
	r.storing.Lock()
	defer r.storing.Unlock()
	r.mu.Lock()
	if r.mu.due != nil {
		r.mu.due.partial.Release()
		r.mu.due = nil
	}
	for _, v := range r.mu.versions {
		v.partial.Release()
	}
	r.mu.versions = nil
	r.mu.Unlock()
	return errors.Join(r.log.Close(), r.o.Disk.Close())
}
