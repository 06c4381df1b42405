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

// Chain is the node's own chain. Run makes one call of Apply at a time, beside which the others may
// be called.
type Chain interface {
	// Height is that of the last block that was executed; 0: none.
	Height() int64
	// Time is what the header of that block says, which its validators have signed; zero: there is
	// none.
	Time() time.Time
	// MaxBlockBytes is the limit of the block after the last one with its commit, in bytes.
	MaxBlockBytes() int64
	// Apply checks and executes the block after the last one. ErrUnsigned: its commit does not
	// prove it. Any other error ends the run. It does not keep the block's parts.
	Apply(ctx context.Context, b Block) error
}

// Errors of Apply and Run.
var (
	// ErrUnsigned: the validators did not sign the block.
	ErrUnsigned = errors.New("the validators did not sign the block")
	// ErrStalled: peers claim to have blocks, and for Options.Stall none was executed, or those who
	// claim that were given up.
	ErrStalled = errors.New("no block has come from peers that claim to have them")
)

// Options are what a run needs.
type Options struct {
	Logger  log.Logger // nil: no logs
	ChainID string
	Chain   Chain
	// Peers returns who is connected. changed is closed when that, or a claim, may be another.
	// settled reports whether those who are connected have said what they have.
	Peers func() (list []Peer, changed <-chan struct{}, settled bool)
	// Ban is called for a peer that was proved to have lied.
	Ban func(id transport.ID, reason string)
	// MemoryBytes bounds about what is under way and not executed yet, beside the next block; 0:
	// the default, 256 MiB.
	MemoryBytes int64
	// Settle is how long claims are waited for before nobody's being ahead is believed, Stall how
	// long a block may take; 0: the defaults, 3 seconds and 1 minute.
	Settle, Stall time.Duration
	View          *View
	Progress      func(Progress) // called one call at a time; nil: nobody
}

const (
	defaultMemory = 256 << 20
	maxAnswer     = 4 << 20 // bytes of an answer, unless one block has more
	firstBlocks   = 8       // asked for while their length is not known
	maxUnderWay   = 8       // answers that are awaited, or not executed yet
	minUnderWay   = 2
	// decoded is about how many times its length a block takes while it is decoded and waits,
	// unless its transactions are short.
	decoded = 3

	tick     = 200 * time.Millisecond
	logEvery = 10 * time.Second
)

// Run asks peers for blocks and has them executed until Decide returns Normal, or until the blocks
// are so young that CometBFT can as well fetch the rest, whatever is claimed. It returns nil then,
// also if nobody is ahead; ErrStalled; an error of Chain.Apply; or that of ctx. What was executed
// stays in any case, and the next Run continues there.
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
	if err != nil { // others would see a run for ever
		p := l.progress
		p.Height = max(o.Chain.Height(), l.height)
		p.State, p.Left, p.Target = Normal, 0, p.Height
		o.View.report(p)
	}
	return err
}

// loop is a run. Only the goroutine of run uses it, but for what has a lock.
type loop struct {
	o       Options
	ctx     context.Context
	wg      sync.WaitGroup
	roster  *roster
	buffers buffers

	window  window
	asked   map[span]bool    // spans that are being asked for
	ready   map[int64]*batch // by first height
	found   chan found
	applied chan applied
	busy    bool  // a batch is being executed
	height  int64 // of the last batch that was executed
	limit   int   // bytes of an answer
	perHead int   // bytes of a block, of late; 0: not known
	// later: the first height for which there was no room, and that is asked for when it is the
	// next one; 0: none is known.
	later int64
	room  room

	// moved: when a block was executed last; young: since when the last one is young, zero: it is
	// not.
	began, moved, young, logged time.Time
	speed                       speed
	progress                    Progress
}

// found is what a search has found.
type found struct {
	span  span
	batch *batch // nil: nothing
	later bool   // if nothing: there was no room, and it is asked for when it is the next one
}

// applied is how far a batch was executed.
type applied struct {
	batch  *batch
	height int64 // of its last block that was executed
	err    error
}

// newLoop takes options whose defaults are set.
func newLoop(ctx context.Context, o Options) *loop {
	now := time.Now()
	l := &loop{
		o: o, ctx: ctx, began: now, moved: now, height: o.Chain.Height(), room: room{most: o.MemoryBytes},
		roster: &roster{peers: map[transport.ID]*peer{}}, ready: map[int64]*batch{}, asked: map[span]bool{},
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

// youngAge is the age of a young block, in Options.Stall. Of a chain that makes a block in each
// Stall, so that a run never stalls, the last block that is served is up to two of these old: its
// time is that of the block before, and it is served when there is the next one.
const youngAge = 3

// isYoung reports whether the last block is young: by what the validators have signed, since peers
// that lie can claim more at any time, give what honest ones give, and be busy.
func (l *loop) isYoung() bool {
	t := l.o.Chain.Time()
	return !t.IsZero() && time.Since(t) < youngAge*l.o.Stall
}

// end returns the result of a run that is over: those who have more may have been too slow.
func (l *loop) end() error {
	if last := l.roster.idle(); last-l.height >= nearTip && !l.isYoung() {
		return fmt.Errorf("%w: at height %d those were given up that claim %d", ErrStalled, l.height, last)
	}
	return nil
}

// decide reports whether the run is over, and tells how far it is.
func (l *loop) decide(settled bool) (done bool) {
	claims, peers, banned := l.roster.claims()
	state := Decide(Facts{Height: l.height, Claims: claims})
	done = state == Normal && !l.busy && (settled || time.Since(l.began) > l.o.Settle)
	if l.young.IsZero() && l.isYoung() {
		l.young = time.Now()
	}
	if state == CatchUp && !l.busy && !l.young.IsZero() && time.Since(l.young) > l.o.Stall {
		l.o.Logger.Info("The last blocks are left to CometBFT: they are young, and peers claim more", "height", l.height)
		done = true
	}
	p := &l.progress
	p.State, p.Height, p.Peers, p.Banned, p.Target = CatchUp, max(l.o.Chain.Height(), l.height), peers, banned, l.height
	if done {
		p.State, p.Left = Normal, 0
	}
	for _, c := range claims {
		p.Target = max(p.Target, c.Last-1)
	}
	if done && state != Normal { // what is claimed was not believed
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

// fill begins as many searches as there is room for. What is needed next is always asked for.
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
		// Only what somebody claims to have, and is not resting, is taken out of the window.
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
		if l.perHead == 0 { // nobody knows yet how many fit in an answer
			return
		}
	}
}

// blocks returns how many blocks are asked for at once.
func (l *loop) blocks() int {
	if l.perHead == 0 {
		return firstBlocks
	}
	return min(max(l.limit/l.perHead, 1), MaxBlocks)
}

// most returns how many answers may be awaited or wait to be executed.
func (l *loop) most() int {
	if l.perHead == 0 {
		return 1
	}
	return int(min(max(l.o.MemoryBytes/int64(decoded*max(l.limit, l.perHead)), minUnderWay), maxUnderWay))
}

// take keeps what a search has found until it is its turn.
func (l *loop) take(f found) {
	delete(l.asked, f.span)
	b := f.batch
	if b == nil {
		l.window.giveBack(f.span)
		// The next block is executed already, or is asked for in any case.
		if f.later && (l.later <= l.height+1 || f.span.from < l.later) {
			l.later = f.span.from
		}
		return
	}
	l.perHead = max(b.perHead, 1)
	l.window.giveBack(span{b.to + 1, f.span.to})
	l.ready[b.from] = b
}

// execute has the next batch executed, if it is there.
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

// count notes what was executed. What the validators did not sign is asked for elsewhere.
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

// lied bans a peer for a false answer, unless somebody else may have sent it.
func (l *loop) lied(p *peer, unproved bool, err error) {
	if l.roster.doubt(p, unproved) {
		l.o.Logger.Info("A wrong answer came that proves nothing: asking again for one that does", "peer", p.conn.Remote().ID, "err", err)
		return
	}
	if l.o.Ban != nil {
		l.o.Ban(p.conn.Remote().ID, err.Error())
	}
}
