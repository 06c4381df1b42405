package catchup

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/transport"
)

// Chain is the node's own chain. Run calls Apply from one goroutine at a time; the other methods
// may be called concurrently with it.
type Chain interface {
	// Height returns the height of the last executed block; 0: none.
	Height() int64
	// Time returns the time in the header of that block, which its validators have signed; zero if
	// there is no block.
	Time() time.Time
	// MaxBlockBytes limits the size of the next block with its commit, in bytes.
	MaxBlockBytes() int64
	// Apply verifies and executes the next block. ErrUnsigned: the commit does not prove the block.
	// Any other error ends the run. Apply does not retain the block's parts.
	Apply(ctx context.Context, b Block) error
}

// Errors of Apply and Run.
var (
	// ErrUnsigned: the validators did not sign the block.
	ErrUnsigned = errors.New("the validators did not sign the block")
	// ErrStalled: peers claim blocks, but none was executed for Options.Stall, or the peers that
	// claim them were given up.
	ErrStalled = errors.New("no block arrived from the peers that claim to have them")
)

// Options configure a run.
type Options struct {
	Logger  log.Logger // nil: no logs
	ChainID string
	Chain   Chain
	// Peers returns the connected peers. changed is closed when the peers or their claims may have
	// changed. settled reports whether the connected peers have sent their claims.
	Peers func() (list []Peer, changed <-chan struct{}, settled bool)
	// Ban is called for a peer that provably sent invalid data.
	Ban func(id transport.ID, reason string)
	// MemoryBytes limits approximately the memory of answers that are in flight or not yet
	// executed, in addition to the next block; 0: the default, 256 MiB.
	MemoryBytes int64
	// Settle is how long Run waits for claims before it concludes that no peer is ahead. Stall is
	// how long a block may take. 0: the defaults, 3 seconds and 1 minute.
	Settle, Stall time.Duration
	View          *View
	Progress      func(Progress) // never called concurrently; may be nil
}

const (
	defaultMemory = 256 << 20
	maxAnswer     = 4 << 20 // bytes of an answer, unless a single block has more
	firstBlocks   = 8       // requested at once while the block length is unknown
	maxUnderWay   = 8       // answers in flight or not yet executed
	minUnderWay   = 2
	// decoded is the approximate ratio of a block's memory, while it is decoded and waits, to its
	// length, unless its transactions are short.
	decoded = 3

	tick     = 200 * time.Millisecond
	logEvery = 10 * time.Second
)

// Run requests blocks from peers and executes them until Decide returns Normal, or until the last
// blocks are so recent that CometBFT can fetch the rest whatever peers claim. In both cases it
// returns nil, also if no peer is ahead. Other results: ErrStalled; an error of Chain.Apply; the
// error of ctx. Executed blocks are kept in any case, and the next Run continues after them.
func Run(ctx context.Context, o Options) error {
	if o.Logger == nil {
		o.Logger = log.NewNopLogger()
	}
	for _, d := range []struct {
		value  *time.Duration
		normal time.Duration
	}{{&o.Settle, 3 * time.Second}, {&o.Stall, time.Minute}} {
		if *d.value == 0 {
			*d.value = d.normal
		}
	}
	if o.MemoryBytes == 0 {
		o.MemoryBytes = defaultMemory
	}
	ctx, cancel := context.WithCancel(ctx)
	l := newLoop(ctx, o)
	err := l.run()
	cancel()
	l.wg.Wait()
	if err != nil { // otherwise the View would show an active run forever
		p := l.progress
		p.Height = max(o.Chain.Height(), l.height)
		p.State, p.Left, p.Memory, p.Target = Normal, 0, 0, p.Height
		o.View.report(p)
	}
	return err
}

// loop is a run. Only run's goroutine uses it, except for fields with their own lock.
type loop struct {
	o       Options
	ctx     context.Context
	wg      sync.WaitGroup
	roster  *roster
	buffers buffers

	window  window
	asked   map[span]bool    // spans being requested
	ready   map[int64]*batch // by first height
	found   chan found
	applied chan applied
	busy    bool  // a batch is being executed
	height  int64 // of the last executed batch
	limit   int   // bytes of an answer
	perHead int   // recent bytes per block; 0: unknown
	// later is the first height that did not fit into memory, and is requested again when it is the
	// next one; 0: none.
	later int64
	room  room

	// moved: when the last block was executed; young: since when the last block is recent, zero if
	// it is not.
	began, moved, young, logged time.Time
	speed                       speed
	progress                    Progress
}

// found is the result of a search.
type found struct {
	span  span
	batch *batch // nil: none
	later bool   // no room: request it again when it is the next one
}

// applied is the result of executing a batch.
type applied struct {
	batch  *batch
	height int64 // of its last executed block
	err    error
}

// newLoop requires options with defaults set.
func newLoop(ctx context.Context, o Options) *loop {
	now := time.Now()
	l := &loop{
		o: o, ctx: ctx, began: now, moved: now, height: o.Chain.Height(), room: room{most: o.MemoryBytes},
		roster: newRoster(), ready: map[int64]*batch{}, asked: map[span]bool{},
		found: make(chan found), applied: make(chan applied), speed: speed{began: now}, limit: int(min(max(o.MemoryBytes/64, minBytes), maxAnswer)),
	}
	l.window = newWindow(l.height)
	return l
}

func (l *loop) run() error {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		list, changed, settled := l.o.Peers()
		l.roster.update(list)
		if done := l.decide(settled); done {
			return l.end()
		}
		l.fill()
		l.execute()
		select {
		case <-l.ctx.Done():
			return l.ctx.Err()
		case <-changed:
		case <-ticker.C:
		case f := <-l.found:
			l.take(f)
		case a := <-l.applied:
			if err := l.count(a); err != nil {
				return err
			}
		}
		if time.Since(l.moved) > l.o.Stall && !l.busy {
			return fmt.Errorf("%w: %v at height %d", ErrStalled, l.o.Stall, l.height)
		}
	}
}

// youngAge is the maximum age of a recent block, in units of Options.Stall. Suppose that a chain
// makes one block per Stall, so that a run never stalls. Then the last served block is up to two
// Stalls old: its time is that of the block before it, and it is served once the next block exists.
const youngAge = 3

// isYoung reports whether the last block is recent. It relies on the signed block time: faulty
// peers can always claim more blocks, send what honest peers send, and be busy.
func (l *loop) isYoung() bool {
	t := l.o.Chain.Time()
	return !t.IsZero() && time.Since(t) < youngAge*l.o.Stall
}

// end returns the result of a finished run. Peers that have more blocks may have been given up as
// too slow.
func (l *loop) end() error {
	if last := l.roster.idle(); last-l.height >= nearTip && !l.isYoung() {
		return fmt.Errorf("%w: at height %d all peers that claim height %d were given up", ErrStalled, l.height, last)
	}
	return nil
}

// decide reports whether the run is over, and updates and reports the progress.
func (l *loop) decide(settled bool) (done bool) {
	claims, peers, banned := l.roster.claims()
	state := Decide(Facts{Height: l.height, Claims: claims})
	done = state == Normal && !l.busy && (settled || time.Since(l.began) > l.o.Settle)
	if l.young.IsZero() && l.isYoung() {
		l.young = time.Now()
	}
	if state == CatchUp && !l.busy && !l.young.IsZero() && time.Since(l.young) > l.o.Stall {
		l.o.Logger.Info("Leaving the last blocks to CometBFT: they are recent, but peers claim more", "height", l.height)
		done = true
	}
	p := &l.progress
	p.State, p.Height, p.Peers, p.Banned, p.Target = CatchUp, max(l.o.Chain.Height(), l.height), peers, banned, l.height
	p.Memory = l.room.bytes()
	if done {
		p.State, p.Left, p.Memory = Normal, 0, 0
	}
	for _, c := range claims {
		p.Target = max(p.Target, c.Last-1)
	}
	if done && state != Normal { // the claims were not believed
		p.Target = p.Height
	}
	if p.State != Normal {
		l.speed.note(time.Now(), p)
	}
	l.o.View.report(*p)
	if l.o.Progress != nil && (p.Target > p.Height || p.Blocks > 0) {
		l.o.Progress(*p)
	}
	if now := time.Now(); p.Blocks > 0 && (done || now.Sub(l.logged) > logEvery) {
		l.logged = now
		l.o.Logger.Info("Catching up by blocks", "state", p.State, "height", p.Height, "of", p.Target, "blocks", p.Blocks,
			"blocks_per_second", fmt.Sprintf("%.1f", p.BlockRate), "bytes_per_second", p.Rate, "left", p.Left.Round(time.Second), "peers", peers, "banned", banned)
	}
	return done
}

// fill starts as many searches as there is room for. The next needed height is always requested.
func (l *loop) fill() {
	for {
		held := len(l.asked) + len(l.ready)
		if l.busy {
			held++
		}
		room := held < l.most()
		for s := range l.asked {
			room = room || l.window.lowest() < s.from
		}
		for from := range l.ready {
			room = room || l.window.lowest() < from
		}
		if !room {
			return
		}
		if low := l.window.lowest(); low == l.later && low != l.height+1 {
			return
		}
		// Take heights out of the window only if a peer claims them and may be asked now.
		if len(l.asked) >= maxOut*l.progress.Peers || len(l.roster.candidates(l.window.lowest(), time.Now())) == 0 {
			return
		}
		s, ok := l.window.take(l.progress.Target, l.blocks())
		if !ok {
			return
		}
		l.asked[s] = true
		r := request{from: s.from, count: int(s.to - s.from + 1), limit: l.limit}
		l.wg.Go(func() {
			f := l.search(l.ctx, r)
			select {
			case l.found <- f:
			case <-l.ctx.Done():
			}
		})
		if l.perHead == 0 { // the number of blocks per answer is still unknown
			return
		}
	}
}

// blocks returns the number of blocks per request.
func (l *loop) blocks() int {
	if l.perHead == 0 {
		return firstBlocks
	}
	return min(max(l.limit/l.perHead, 1), MaxBlocks)
}

// most returns the maximum number of answers in flight or waiting to be executed.
func (l *loop) most() int {
	if l.perHead == 0 {
		return 1
	}
	return int(min(max(l.o.MemoryBytes/int64(decoded*max(l.limit, l.perHead)), minUnderWay), maxUnderWay))
}

// take stores the result of a search until its turn.
func (l *loop) take(f found) {
	delete(l.asked, f.span)
	b := f.batch
	if b == nil {
		l.window.giveBack(f.span)
		// The next block is already executed, or will be requested in any case.
		if f.later && (l.later <= l.height+1 || f.span.from < l.later) {
			l.later = f.span.from
		}
		return
	}
	l.perHead = max(b.perHead, 1)
	l.window.giveBack(span{b.to + 1, f.span.to})
	l.ready[b.from] = b
}

// execute starts to execute the next batch, if it has arrived.
func (l *loop) execute() {
	b := l.ready[l.height+1]
	if l.busy || b == nil {
		return
	}
	delete(l.ready, b.from)
	l.busy = true
	l.wg.Go(func() {
		done := applied{batch: b, height: b.from - 1}
		for _, block := range b.blocks {
			if done.err = l.ctx.Err(); done.err != nil {
				break
			}
			if done.err = l.o.Chain.Apply(l.ctx, block); done.err != nil {
				break
			}
			done.height = block.Height
		}
		select {
		case l.applied <- done:
		case <-l.ctx.Done():
		}
	})
}

// count records the executed blocks. Unsigned blocks are requested again.
func (l *loop) count(a applied) error {
	b := a.batch
	l.busy = false
	b.lease.release()
	if a.height > l.height {
		l.moved = time.Now()
	}
	l.height = a.height
	for _, block := range b.blocks[:a.height-b.from+1] {
		l.progress.Blocks++
		l.progress.Bytes += uint64(block.Bytes)
	}
	switch {
	case a.err == nil:
		l.roster.right(b.peer, b.unproved)
		l.buffers.give(b.buffer)
	case errors.Is(a.err, ErrUnsigned):
		l.lied(b.peer, b.unproved, a.err)
		l.window.giveBack(span{a.height + 1, b.to})
	default:
		return a.err
	}
	return nil
}

// lied bans a peer for an invalid answer, unless another sender may have forged the answer.
func (l *loop) lied(p *peer, unproved bool, err error) {
	if l.roster.doubt(p, unproved) {
		l.o.Logger.Info("Received a wrong answer without proof of its sender: asking again for a proved one", "peer", p.conn.Remote().ID, "err", err)
		return
	}
	if l.o.Ban != nil {
		l.o.Ban(p.conn.Remote().ID, err.Error())
	}
}
