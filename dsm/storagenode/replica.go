package storagenode

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

// Headers has the app hashes that headers prove. It may be called concurrently.
type Headers interface {
	// AppHash returns the app hash of the state after a block, which the header of the next height
	// has. ok is false until that header is proved. It returns at once.
	AppHash(height int64) (hash avlstar.Hash, ok bool)
}

// Options are what a replica is opened with.
type Options struct {
	Range   avlstar.KeyRange
	Log     LogOptions
	Disk    Disk // Replica.Close closes it
	Headers Headers
	Limits  Limits
	// ServeHeights is how many of the last heights are answered; default 64. It is to be above the
	// greatest lag of updates, so that replicas that are at different heights have some in common.
	ServeHeights int
	// ServeBytes limits the memory of what only older heights have; default 256 MiB. The newest
	// height is answered always.
	ServeBytes uint64
	// Interval is the heights between two stored states, and Keep how many of these are kept;
	// defaults 1000 and 2. Keep-1 intervals are not shorter than ServeHeights-1: so a start can
	// answer as many heights.
	Interval int64
	Keep     int
	// Verdict, if not nil, is told who has sent what is false (ErrFalse, dsm.ErrSum) or was too
	// slow (ErrSlow, which proves nothing). Receive and Advance call it, perhaps concurrently.
	Verdict func(Verdict)
}

func (o *Options) setDefaults() error {
	o.ServeHeights = orDefault(o.ServeHeights, 64)
	if o.ServeBytes == 0 {
		o.ServeBytes = 256 << 20
	}
	o.Interval, o.Keep = orDefault(o.Interval, 1000), orDefault(o.Keep, 2)
	if int64(o.Keep-1)*o.Interval < int64(o.ServeHeights-1) {
		return fmt.Errorf("%d stored states at intervals of %d heights: a start could not answer %d heights; keep more, or serve fewer",
			o.Keep, o.Interval, o.ServeHeights)
	}
	return nil
}

// Verdict names the sender of an update, and what was wrong with it.
type Verdict struct {
	Sender transport.ID
	Range  avlstar.KeyRange
	Height int64
	Err    error
}

// Replica keeps one range.
//
// Receive, At and Claim may be called concurrently, with each other and with everything else.
// Advance and Store each wait for another call of themselves.
type Replica struct {
	o Options

	advancing sync.Mutex // held by Advance
	storing   sync.Mutex // held by Store
	// logging guards log. It is held while files are read and written.
	logging sync.Mutex
	log     *Log

	recovered Recovered

	mu struct {
		sync.Mutex
		versions []version // ascending without gaps; the last is the newest. Only Advance adds.
		waiting  *waiting
		due      *version // to be stored; holds a reference
		failed   error    // of the log: nothing is acknowledged any more
		closed   bool
	}
}

// version is the range after a block.
type version struct {
	height  int64
	partial *avlstar.Partial // holds a reference
}

// Receive takes a part of an update of this range, and answers how far it has come. The answer is
// to be sent with ErrFarAhead and ErrFull too, after which the sender tries again later; other
// errors refuse the part.
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

// failure returns why nothing is taken any more. The caller holds mu.
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

// Advance applies what waits and is proved: it replays the update, logs it durably, and answers its
// height from then on. It returns how many heights it has come on. It is to be called after Receive
// and after a header was proved. An error of the log or of the tree is final: the replica still
// answers the heights that it has, and takes no updates before it is opened anew.
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

// compare compares a version with its header, where that is known. A state of another chain would
// make each honest update a false one.
func (r *Replica) compare(v version) error {
	hash, proved := r.o.Headers.AppHash(v.height)
	if got := v.partial.AppHash(); proved && hash != got {
		return fmt.Errorf("storagenode: %w: the state of height %d has app hash %s, the header has %s; %s", ErrOther, v.height, got, hash, remedy)
	}
	return nil
}

// newest returns the newest version, which stays in use while the caller holds mu or advancing.
func (r *Replica) newest() version { return r.mu.versions[len(r.mu.versions)-1] }

// replay returns the version after an update, which is to have the app hash. ErrFalse: it has not.
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

// append logs the update that has led to v, durably. After an error v is released.
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

// publish answers a height from now on, and gives up heights that are too many.
func (r *Replica) publish(v version) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.versions = append(r.mu.versions, v)
	r.mu.waiting.advance(v.height)
	if v.height%r.o.Interval == 0 {
		if r.mu.due != nil {
			r.mu.due.partial.Release() // a newer one takes its place
		}
		v.partial.Retain()
		r.mu.due = &v
	}
	r.giveUp()
}

// giveUp releases the oldest versions until the rest keeps the limits. The caller holds mu.
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

// At returns the range after a block, with a reference for the caller, who releases it. ok is false
// if that height is not answered, or not any more.
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

// Claim returns what the replica has.
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

// Newest returns the newest height that the replica has, which is 0 before the first block, and
// whether the update of the next one is here and waits for its header.
func (r *Replica) Newest() (height int64, waits bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, waits = r.mu.waiting.candidate()
	return r.mu.waiting.next - 1, waits
}

// Waiting returns how many updates wait, complete or not, and their bytes.
func (r *Replica) Waiting() (updates, bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.mu.waiting.whole) + len(r.mu.waiting.begun), r.mu.waiting.bytes
}

func rangeOf(r avlstar.KeyRange) dsm.Range { return dsm.Range{First: r.First, After: r.After} }

// Close gives up all versions and closes the files. Versions that others hold stay theirs.
func (r *Replica) Close() error {
	r.mu.Lock()
	closed := r.mu.closed
	r.mu.closed = true
	r.mu.Unlock()
	if closed {
		return nil
	}
	r.advancing.Lock() // waits for who is advancing or storing
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
