package client

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/client/feed"
	"github.com/starling-kv/starling/internal/wake"
)

// maxMaking is the maximum number of blocks that wait for their updates to be encoded. Each of them
// keeps its versions in memory.
const maxMaking = 4

// feeding wraps a feed.Machine with its timer, the encoded updates, and the blocks whose updates
// are not yet encoded.
type feeding struct {
	c  *Client
	mu struct {
		sync.Mutex
		layout     Map
		machine    *feed.Machine // nil before Begin
		validators feed.Validators
		timer      *time.Timer
		head       int64          // last block that the machine knows
		last       int64          // height of the last call of Committed
		shards     []*shard       // the ranges of the machine, in the order of their keys
		by         map[int]*shard // the same, by their numbers
		making     []made         // by ascending height
		wake       chan struct{}  // capacity 1: making has grown
		changed    chan struct{}  // closed and replaced when callers of Room must check again
		durable    int64
		failed     error // why updates cannot be encoded at present
		closed     bool
	}
}

// shard is a range. feeding.mu guards updates; the rest does not change.
type shard struct {
	feed.Shard
	updates             []*update // those that the machine has queued, up to its head
	lag, queued, behind prometheus.Gauge
}

// update is an encoded update.
type update struct {
	bytes []byte
	sum   [32]byte
}

// made is a block whose updates are to be encoded. It holds a reference to each version.
type made struct {
	height  int64
	v, base *avlstar.Version
	changes []avlstar.Change
	next    *Map // to be used after this block; nil: the map stays
}

func (m made) release() {
	m.v.Release()
	if m.base != nil {
		m.base.Release()
	}
}

// begin prepares f.
func (f *feeding) begin(c *Client) {
	f.c = c
	f.mu.by, f.mu.wake, f.mu.changed = map[int]*shard{}, make(chan struct{}, 1), make(chan struct{})
	f.mu.timer = time.AfterFunc(math.MaxInt64, func() { f.step(feed.Tick{}) })
}

// change replaces the map. The policy is valid for it.
func (f *feeding) change(m Map) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.layout = m
	f.locked(feed.Change{Ranges: m.Ranges, Next: m.Next})
}

// hasBegun reports whether Begin has been called.
func (f *feeding) hasBegun() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.machine != nil
}

// renew takes the ranges from the machine, after its map has changed. The caller holds mu.
func (f *feeding) renew() {
	old, metrics := f.mu.by, f.c.o.Metrics
	f.mu.shards, f.mu.by = nil, map[int]*shard{}
	names := map[string]bool{}
	for _, s := range f.mu.machine.Shards() {
		name := s.Range.String()
		to := &shard{Shard: s, lag: metrics.Lag.WithLabelValues(name), queued: metrics.Queued.WithLabelValues(name), behind: metrics.Behind.WithLabelValues(name)}
		if was := old[s.Number]; was != nil {
			to.updates = was.updates
		}
		f.mu.shards, f.mu.by[s.Number], names[name] = append(f.mu.shards, to), to, true
	}
	for _, was := range old {
		if name := was.Range.String(); !names[name] {
			for _, gauges := range []*prometheus.GaugeVec{metrics.Lag, metrics.Queued, metrics.Behind} {
				gauges.DeleteLabelValues(name)
			}
		}
	}
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

// notify wakes callers that wait in Room. The caller holds mu.
func (f *feeding) notify() {
	close(f.mu.changed)
	f.mu.changed = make(chan struct{})
}

// step passes an event to the machine and performs its actions.
func (f *feeding) step(e feed.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.locked(e)
}

// locked is step for a caller that holds mu.
func (f *feeding) locked(e feed.Event) {
	if f.mu.closed || f.mu.machine == nil {
		return
	}
	actions := f.mu.machine.Step(f.c.now(), e)
	if _, is := e.(feed.Change); is {
		f.renew()
	}
	for _, a := range actions {
		f.perform(a)
	}
	if at, ok := f.mu.machine.Next(); ok {
		f.mu.timer.Reset(max(at-f.c.now(), 0))
	}
	f.measure()
	f.notify()
}

func (f *feeding) perform(a feed.Action) {
	log := f.c.o.Logger
	switch a := a.(type) {
	case feed.Send:
		s := f.mu.by[a.Shard]
		u := s.updates[len(s.updates)-1-int(f.mu.head-a.Height)]
		f.c.wg.Go(func() { f.send(a, s.Range, u) })
	case feed.Poll:
		f.c.wg.Go(func() {
			p := f.c.layout().peers[a.Node]
			if p != nil {
				if _, ok := p.poll(f.c.ctx); ok {
					return
				}
			}
			f.step(feed.NotPolled{Node: a.Node})
		})
	case feed.Forget:
		s := f.mu.by[a.Shard]
		n := len(s.updates) - int(f.mu.head-a.Height)
		clear(s.updates[:n]) // append copies the rest, but not at once
		s.updates = s.updates[n:]
	case feed.Left:
		if s := f.mu.by[a.Shard]; s.Next {
			log.Info("a storage node does not have a new range yet", "node", a.Node, "range", s.Range)
		} else {
			log.Error("a storage node is too far behind and receives no more updates: it must fetch its range again",
				"node", a.Node, "range", s.Range, "durable", a.Durable, "head", a.Head)
		}
	case feed.Back:
		log.Info("a storage node has caught up", "node", a.Node, "range", f.mu.by[a.Shard].Range)
	}
}

// MaxBehind is the number of blocks that a healthy replica may be behind: two are normal.
const MaxBehind = 16

// measure updates the durable height and the metrics of the ranges that the last step touched. The
// caller holds mu.
func (f *feeding) measure() {
	m := f.mu.machine
	for _, i := range m.Touched() {
		s := f.mu.by[i]
		s.lag.Set(float64(f.mu.head - m.Durable(i)))
		s.queued.Set(float64(m.Queued(i)))
		behind := 0
		for _, l := range m.Lags(i) {
			if l.State == feed.Unheard || l.Blocks > MaxBehind {
				behind++
			}
		}
		s.behind.Set(float64(behind))
	}
	f.mu.durable = max(f.mu.durable, m.AllDurable())
	f.c.o.Metrics.Durable.Set(float64(f.mu.durable))
}

// Begin sets the height of the current state: the first block passed to Committed is the next one.
// It must be called once.
func (c *Client) Begin(height int64) {
	f := &c.feeding
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.closed || f.mu.machine != nil {
		return
	}
	m, err := feed.New(f.mu.layout.Ranges, c.o.Feed, height)
	if err != nil {
		panic(err) // SetMap has checked the policy
	}
	f.mu.machine, f.mu.head, f.mu.last = m, height, height
	f.locked(feed.Change{Ranges: f.mu.layout.Ranges, Next: f.mu.layout.Next})
	c.wg.Go(f.run)
	if f.mu.validators.Count > 0 {
		f.locked(f.mu.validators)
	}
	f.locked(feed.Tick{})
}

// Errors of Committed.
var (
	// ErrNotBegun: Begin has not been called.
	ErrNotBegun = errors.New("Begin has not been called")
	// ErrGap: the block does not follow the last one.
	ErrGap = errors.New("the block does not follow the last one")
)

// Committed queues the changes of a block for all replicas and returns at once. v is the version
// that Apply returned, before Shed; base is the version that it was applied to, or nil if unknown.
// Committed retains both versions and does not modify them. The caller must not modify changes
// afterwards. Errors: ErrNotBegun, ErrGap, ErrClosed.
func (c *Client) Committed(height int64, v, base *avlstar.Version, changes []avlstar.Change) error {
	f := &c.feeding
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.mu.closed:
		return ErrClosed
	case f.mu.machine == nil:
		return fmt.Errorf("storage nodes: block %d: %w", height, ErrNotBegun)
	case height != f.mu.last+1:
		return fmt.Errorf("storage nodes: block %d after block %d: %w", height, f.mu.last, ErrGap)
	}
	v.Retain()
	if base != nil {
		base.Retain()
	}
	f.mu.last = height
	f.mu.making = append(f.mu.making, made{height, v, base, changes, c.due(v)})
	wake.Up(f.mu.wake)
	return nil
}

// Room blocks while the next block must wait: while a range has fewer than feed.Policy.MinAcks
// replicas within the allowed lag, or while too many blocks wait for their updates to be encoded.
// It returns the error of ctx, or ErrClosed.
func (c *Client) Room(ctx context.Context) error {
	f := &c.feeding
	began := time.Now()
	var logged time.Time
	defer func() { c.o.Metrics.Blocked.Add(time.Since(began).Seconds()) }()
	for {
		f.mu.Lock()
		changed, closed := f.mu.changed, f.mu.closed
		var blocked feed.Block
		var waits bool // for replicas
		if f.mu.machine != nil {
			blocked, waits = f.mu.machine.FirstBlocked()
		}
		waiting := len(f.mu.making)
		f.mu.Unlock()
		switch {
		case closed:
			return ErrClosed
		case !waits && waiting < maxMaking:
			return nil
		}
		if now := time.Now(); waits && now.Sub(began) >= logAfter && now.Sub(logged) >= logEvery {
			logged = now
			c.o.Logger.Error("the next block waits: too few storage nodes of a range have the latest blocks on disk", "range", blocked.Range, "replicas", fmt.Sprintf("%+v", blocked.Replicas))
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if waits {
				return fmt.Errorf("storage nodes: too few storage nodes of range %v are within the allowed lag: %w", blocked.Range, ctx.Err())
			}
			return ctx.Err()
		}
	}
}

const (
	logAfter = time.Second
	logEvery = 10 * time.Second
)

// Durable returns the newest height that feed.Policy.MinAcks replicas of each range report as
// durable. It never decreases; it is 0 while unknown.
func (c *Client) Durable() int64 {
	c.feeding.mu.Lock()
	defer c.feeding.mu.Unlock()
	return c.feeding.mu.durable
}

// UpdateBytes returns the size of the updates that are kept for replicas.
func (c *Client) UpdateBytes() uint64 {
	c.feeding.mu.Lock()
	defer c.feeding.mu.Unlock()
	if c.feeding.mu.machine == nil {
		return 0
	}
	return c.feeding.mu.machine.Kept()
}

// Validators sets the number of validators and this node's index, self, in an order that all
// validators know. self is negative if this node is not a validator. The indices decide which
// validator sends which update.
func (c *Client) Validators(count, self int) {
	f := &c.feeding
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.validators = feed.Validators{Count: count, Self: self}
	f.locked(f.mu.validators)
}

// status returns the state of all updates.
func (f *feeding) status() (st Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	st.Head, st.Durable = f.mu.head, f.mu.durable
	if f.mu.failed != nil {
		st.Failed = f.mu.failed.Error()
	}
	if f.mu.machine == nil {
		for i := range f.mu.layout.Ranges.Len() {
			of := f.mu.layout.Ranges.Shard(i)
			r := RangeStatus{Range: of.Range}
			for _, n := range of.Replicas {
				r.Nodes = append(r.Nodes, NodeStatus{Lag: feed.Lag{Node: n}})
			}
			st.Ranges = append(st.Ranges, r)
		}
	}
	for _, s := range f.mu.shards {
		r := RangeStatus{Range: s.Range, Next: s.Next, Durable: f.mu.machine.Durable(s.Number), Queued: f.mu.machine.Queued(s.Number)}
		for _, l := range f.mu.machine.Lags(s.Number) {
			r.Nodes = append(r.Nodes, NodeStatus{Lag: l})
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

// send sends an update to a replica, part by part, and reports the outcome to the machine.
func (f *feeding) send(a feed.Send, r avlstar.KeyRange, u *update) {
	sent, err := f.parts(a, r, u)
	if err != nil {
		if f.c.ctx.Err() == nil {
			f.c.o.Logger.Debug("an update was not sent", "node", a.Node, "range", r, "height", a.Height, "err", err)
		}
		f.step(feed.NotSent{Node: a.Node, Shard: a.Shard})
		return
	}
	f.step(sent)
}

// partTimeout limits each part: 10 s allow 1 MiB at about 100 KiB/s.
const partTimeout = 10 * time.Second

func (f *feeding) parts(a feed.Send, r avlstar.KeyRange, u *update) (sent feed.Sent, err error) {
	sent = feed.Sent{Node: a.Node, Shard: a.Shard}
	offset, probe := 0, a.Probe
	for {
		at := offset
		if probe {
			at = len(u.bytes)
		}
		answer, err := f.part(a, dsm.PartOf(a.Height, r, u.bytes, u.sum, at))
		have := int(answer.Have)
		sent.Answer = answer
		switch {
		case err != nil:
			return sent, err
		case have >= len(u.bytes):
			sent.Complete = true
			return sent, nil
		case !probe && have < min(offset+dsm.MaxPartBytes, len(u.bytes)):
			// The replica accepts no more of the update. An honest node accepts a whole part or
			// nothing; a node that accepts one byte of each part would cost a MiB per byte.
			return sent, nil
		case probe && (answer.Needs == 0 || answer.Needs > a.Height):
			return sent, nil
		case probe:
			sent.Missing = have == 0 && answer.Needs == a.Height
		}
		offset, probe = have, false
	}
}

func (f *feeding) part(a feed.Send, p dsm.UpdatePart) (answer dsm.UpdateAnswer, err error) {
	ctx, cancel := context.WithTimeout(f.c.ctx, partTimeout)
	defer cancel()
	peer := f.c.layout().peers[a.Node]
	if peer == nil {
		return answer, errUnconnected
	}
	b, err := peer.call(ctx, dsm.MethodUpdate, p.Encode(), dsm.UpdateAnswerBytes)
	if err != nil {
		return answer, err
	}
	return dsm.DecodeUpdateAnswer(b)
}

func sumOf(b []byte) *update { return &update{b, sha256.Sum256(b)} }
