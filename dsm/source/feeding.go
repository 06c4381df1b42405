package source

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/feed"
)

// maxMaking is how many blocks may wait for their updates to be made: their versions are in use.
const maxMaking = 4

// feeding is what surrounds a feed.Machine: its timer, the updates that it keeps, and those that
// are being made.
type feeding struct {
	s  *Source
	mu struct {
		sync.Mutex
		machine    *feed.Machine // nil before Begin
		validators feed.Validators
		timer      *time.Timer
		head       int64             // of the machine
		last       int64             // the last height of Committed
		updates    map[place]*update // what the machine keeps
		making     []made            // in the order of heights
		wake       chan struct{}     // capacity 1: making has grown
		changed    chan struct{}     // closed, and made anew, when Room is to look
		durable    int64
		failed     error // why updates are not made just now
		closed     bool
	}
}

// place is a range after a block.
type place struct {
	shard  int
	height int64
}

// update is an encoded one.
type update struct {
	bytes []byte
	sum   [32]byte
}

// made is a block whose updates are to be made. It holds a reference to each version.
type made struct {
	height  int64
	v, base *avlstar.Version
	changes []avlstar.Change
}

func (m made) release() {
	m.v.Release()
	if m.base != nil {
		m.base.Release()
	}
}

// check checks the policy, and prepares f.
func (f *feeding) check(s *Source) error {
	f.s = s
	f.mu.updates, f.mu.wake, f.mu.changed = map[place]*update{}, make(chan struct{}, 1), make(chan struct{})
	f.mu.timer = time.AfterFunc(math.MaxInt64, func() { f.step(feed.Tick{}) })
	_, err := feed.New(s.o.Ranges, s.o.Feed, 0)
	return err
}

func (f *feeding) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.closed = true
	f.mu.timer.Stop()
	for _, m := range f.mu.making {
		m.release()
	}
	f.mu.making = nil
	f.notify()
}

// notify wakes those who wait in Room. The caller holds mu.
func (f *feeding) notify() {
	close(f.mu.changed)
	f.mu.changed = make(chan struct{})
}

// step gives the machine an event, and does what follows.
func (f *feeding) step(e feed.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.locked(e)
}

// locked is step for who holds mu.
func (f *feeding) locked(e feed.Event) {
	if f.mu.closed || f.mu.machine == nil {
		return
	}
	for _, a := range f.mu.machine.Step(f.s.now(), e) {
		f.perform(a)
	}
	if at, ok := f.mu.machine.Next(); ok {
		f.mu.timer.Reset(max(at-f.s.now(), 0))
	}
	f.measure()
	f.notify()
}

func (f *feeding) perform(a feed.Action) {
	log := f.s.o.Logger
	switch a := a.(type) {
	case feed.Send:
		u := f.mu.updates[place{a.Shard, a.Height}]
		f.s.wg.Go(func() { f.send(a, u) })
	case feed.Poll:
		f.s.wg.Go(func() {
			if !f.s.peers[a.Node].poll() {
				f.step(feed.NotPolled{Node: a.Node})
			}
		})
	case feed.Forget:
		for at := range f.mu.updates {
			if at.shard == a.Shard && at.height <= a.Height {
				delete(f.mu.updates, at)
			}
		}
	case feed.Left:
		log.Error("a storage node lags too much and is sent no more updates: it has to fetch its range anew",
			"node", a.Node, "range", f.s.o.Ranges.Shard(a.Shard).Range, "durable", a.Durable, "head", a.Head)
	case feed.Back:
		log.Info("a storage node that lagged is in step again", "node", a.Node, "range", f.s.o.Ranges.Shard(a.Shard).Range)
	}
}

// measure follows what replicas have on disk. The caller holds mu.
func (f *feeding) measure() {
	durable := f.mu.head
	for i := range f.s.o.Ranges.Len() {
		of := f.durableOf(i)
		durable = min(durable, of)
		name := f.s.o.Ranges.Shard(i).Range.String()
		f.s.o.Metrics.Lag.WithLabelValues(name).Set(float64(f.mu.head - of))
		f.s.o.Metrics.Queued.WithLabelValues(name).Set(float64(f.mu.machine.Queued(i)))
	}
	f.mu.durable = max(f.mu.durable, durable)
	f.s.o.Metrics.Durable.Set(float64(f.mu.durable))
}

// durableOf returns the height that MinAcks replicas of a range say they have on disk, at most the
// last block's.
func (f *feeding) durableOf(shard int) int64 {
	var heights []int64
	for _, l := range f.mu.machine.Lags(shard) {
		if l.State != feed.Unheard {
			heights = append(heights, min(l.Durable, f.mu.head))
		}
	}
	if len(heights) < f.s.o.Feed.MinAcks {
		return 0
	}
	slices.Sort(heights)
	return heights[len(heights)-f.s.o.Feed.MinAcks]
}

// Begin says that the state after block height is there: the first block of Committed is the next
// one. It is to be called once.
func (s *Source) Begin(height int64) {
	f := &s.feeding
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.closed || f.mu.machine != nil {
		return
	}
	m, err := feed.New(s.o.Ranges, s.o.Feed, height)
	if err != nil {
		panic(err) // New has checked the policy
	}
	f.mu.machine, f.mu.head, f.mu.last = m, height, height
	s.wg.Go(f.run)
	if f.mu.validators.Count > 0 {
		f.locked(f.mu.validators)
	}
	f.locked(feed.Tick{})
}

// Errors of Committed.
var (
	// ErrNotBegun: Begin was not called.
	ErrNotBegun = errors.New("no block was begun with")
	// ErrGap: the block does not follow the last one.
	ErrGap = errors.New("the block does not follow the last one")
)

// Committed takes over the changes of a block for all replicas, and returns at once: v is what
// Apply returned, before Shed, and base what it was applied to (nil: nothing is known of it).
// Neither is changed, and both are in use for a while; so are the changes, which must not be
// modified any more. Errors: ErrNotBegun, ErrGap, ErrClosed.
func (s *Source) Committed(height int64, v, base *avlstar.Version, changes []avlstar.Change) error {
	f := &s.feeding
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.mu.closed:
		return ErrClosed
	case f.mu.machine == nil:
		return fmt.Errorf("source: block %d: %w", height, ErrNotBegun)
	case height != f.mu.last+1:
		return fmt.Errorf("source: block %d after block %d: %w", height, f.mu.last, ErrGap)
	}
	v.Retain()
	if base != nil {
		base.Retain()
	}
	f.mu.last = height
	f.mu.making = append(f.mu.making, made{height, v, base, changes})
	select {
	case f.mu.wake <- struct{}{}:
	default: // it is awake
	}
	return nil
}

// Room waits while the next block must wait: some range has fewer than feed.Policy.MinAcks replicas
// within the lag that is allowed, or the updates of the last blocks are not made yet. The error is
// that of ctx, or ErrClosed.
func (s *Source) Room(ctx context.Context) error {
	f := &s.feeding
	began := time.Now()
	var logged time.Time
	defer func() { s.o.Metrics.Blocked.Add(time.Since(began).Seconds()) }()
	for {
		f.mu.Lock()
		changed, closed := f.mu.changed, f.mu.closed
		var blocked []feed.Block
		if f.mu.machine != nil {
			blocked = f.mu.machine.Blocked()
		}
		waiting := len(f.mu.making)
		f.mu.Unlock()
		switch {
		case closed:
			return ErrClosed
		case len(blocked) == 0 && waiting < maxMaking:
			return nil
		}
		if now := time.Now(); len(blocked) > 0 && now.Sub(began) >= logAfter && now.Sub(logged) >= logEvery {
			logged = now
			s.o.Logger.Error("the next block waits for storage nodes: too few of a range have the last blocks on disk", "range", blocked[0].Range, "replicas", fmt.Sprintf("%+v", blocked[0].Replicas))
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if len(blocked) > 0 {
				return fmt.Errorf("source: too few storage nodes of the keys in %v are within the lag: %w", blocked[0].Range, ctx.Err())
			}
			return ctx.Err()
		}
	}
}

const (
	logAfter = time.Second
	logEvery = 10 * time.Second
)

// Durable returns the newest height that feed.Policy.MinAcks replicas of each range say they have
// on disk. It never decreases; 0 if nothing is known yet.
func (s *Source) Durable() int64 {
	s.feeding.mu.Lock()
	defer s.feeding.mu.Unlock()
	return s.feeding.mu.durable
}

// Validators says that there are count of them, of which this node is number self, in an order that
// all of them know; below 0: it is none of them. Who sends which update follows from that.
func (s *Source) Validators(count, self int) {
	f := &s.feeding
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.validators = feed.Validators{Count: count, Self: self}
	f.locked(f.mu.validators)
}

// status returns what is known of updates.
func (f *feeding) status() (st Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	st.Head, st.Durable = f.mu.head, f.mu.durable
	if f.mu.failed != nil {
		st.Failed = f.mu.failed.Error()
	}
	for i := range f.s.o.Ranges.Len() {
		of := f.s.o.Ranges.Shard(i)
		r := RangeStatus{Range: of.Range}
		if f.mu.machine == nil {
			for _, n := range of.Replicas {
				r.Nodes = append(r.Nodes, NodeStatus{Lag: feed.Lag{Node: n}})
			}
		} else {
			r.Durable, r.Queued = f.durableOf(i), f.mu.machine.Queued(i)
			for _, l := range f.mu.machine.Lags(i) {
				r.Nodes = append(r.Nodes, NodeStatus{Lag: l})
			}
		}
		st.Ranges = append(st.Ranges, r)
	}
	if f.mu.machine != nil {
		for _, b := range f.mu.machine.Blocked() {
			st.Blocked = append(st.Blocked, b.Range)
		}
	}
	return st
}

// send sends an update to a replica, part by part, and reports what came of it.
func (f *feeding) send(a feed.Send, u *update) {
	answer, complete, err := f.parts(a, u)
	if err != nil {
		if f.s.ctx.Err() == nil {
			f.s.o.Logger.Debug("an update was not sent", "node", a.Node, "range", f.s.o.Ranges.Shard(a.Shard).Range, "height", a.Height, "err", err)
		}
		f.step(feed.NotSent{Node: a.Node, Shard: a.Shard})
		return
	}
	f.step(feed.Sent{Node: a.Node, Shard: a.Shard, Answer: answer, Complete: complete})
}

// partTimeout limits each part: a MiB at 100 KiB/s.
const partTimeout = 10 * time.Second

func (f *feeding) parts(a feed.Send, u *update) (answer dsm.UpdateAnswer, complete bool, err error) {
	if u == nil {
		return answer, false, errors.New("it is not kept any more")
	}
	r := f.s.o.Ranges.Shard(a.Shard).Range
	offset, probe := 0, a.Probe
	for {
		at := offset
		if probe {
			at = len(u.bytes)
		}
		answer, err = f.part(a, dsm.PartOf(a.Height, r, u.bytes, u.sum, at))
		have := int(answer.Have)
		switch {
		case err != nil:
			return answer, false, err
		case have >= len(u.bytes):
			return answer, true, nil
		case !probe && have < min(offset+dsm.MaxPartBytes, len(u.bytes)):
			// It takes no more of it. An honest node takes a part whole or not at all; one that
			// takes a byte of each would have a MiB sent for it.
			return answer, false, nil
		case probe && (answer.Needs == 0 || answer.Needs > a.Height):
			return answer, false, nil
		}
		offset, probe = have, false
	}
}

func (f *feeding) part(a feed.Send, p dsm.UpdatePart) (answer dsm.UpdateAnswer, err error) {
	ctx, cancel := context.WithTimeout(f.s.ctx, partTimeout)
	defer cancel()
	b, err := f.s.peers[a.Node].call(ctx, dsm.MethodUpdate, p.Encode(), dsm.UpdateAnswerBytes)
	if err != nil {
		return answer, err
	}
	return dsm.DecodeUpdateAnswer(b)
}

func sumOf(b []byte) *update { return &update{b, sha256.Sum256(b)} }
