package catchup

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-kv/starling/hedge"
	"github.com/starling-kv/starling/transport"
)

// Most blocks come from whoever is asked first. Where they come at less than slowRate, others are
// asked beside.
const (
	slowAfter = time.Second
	slowRate  = 128 << 10 // bytes a second
	turn      = 5 * time.Second
	// idle is how long an answer may stand still, and patience how long one may take.
	idle     = 10 * time.Second
	patience = time.Minute
	// watchEvery is how often it is looked whether something came.
	watchEvery = time.Second
)

// errTurn: a block needs more room than others, which is given to one at a time: the next one.
var errTurn = errors.New("its first block is a long one, and is not the next one")

// idleError: a peer has sent nothing for too long, or has not come to an end.
type idleError struct{ began time.Time } // the call

func (*idleError) Error() string { return "the answer does not come" }

// batch is the blocks that one peer has sent.
type batch struct {
	from, to int64
	blocks   []Block
	bytes    int // about what it takes in memory
	peer     *peer
	unproved bool
	buffer   []byte // what blocks lie in
}

// attempt is one peer in one search.
type attempt struct {
	peer     *peer
	received atomic.Int64
	unproved atomic.Bool // its last answer may be somebody else's
}

// reply is what a peer has answered.
type reply struct {
	request  request
	bytes    []byte
	buffer   []byte
	unproved bool
	blocks   []Block // once it was decoded
}

// search asks for blocks from a height on until somebody has sent some; nil: nobody has. long: it
// is worth asking again only when these are the next ones.
func (l *loop) search(ctx context.Context, r request) (got *batch, long bool) {
	s := hedge.Search[*attempt, *reply]{
		Policy: hedge.Policy{Pace: hedge.ByRate, Start: 1, Most: 2, After: slowAfter, Rate: slowRate, Turn: turn},
		Go:     func(f func()) { l.wg.Go(f) },
		More: func() (list []*attempt, _ <-chan struct{}) {
			for _, p := range l.roster.candidates(r.from, time.Now()) {
				list = append(list, &attempt{peer: p})
			}
			return list, nil
		},
		Ask:      func(ctx context.Context, a *attempt) (*reply, error) { return l.ask(ctx, a, r) },
		Received: func(a *attempt) int64 { return a.received.Load() },
		Prove: func(ctx context.Context, _ *attempt, a *reply) (err error) {
			if len(a.bytes) > l.limit {
				select {
				case l.long <- struct{}{}:
					defer func() { <-l.long }()
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			a.blocks, err = decodeAnswer(l.o.ChainID, a.request, a.bytes)
			return err
		},
		Failed: func(a *attempt, err error) bool {
			long = long || errors.Is(err, errTurn)
			if l.roster.failed(a.peer, r.from, err, time.Now()) {
				l.lied(a.peer, false, err)
			}
			return false
		},
		Refuted: func(a *attempt, err error) bool {
			if ctx.Err() != nil || errors.Is(err, context.Canceled) { // nobody has looked
				return false
			}
			l.lied(a.peer, a.unproved.Load(), err)
			return false
		},
		Proved: func(a *attempt, answer *reply) {
			if got == nil {
				got = &batch{
					from: r.from, to: r.from + int64(len(answer.blocks)) - 1, blocks: answer.blocks, bytes: len(answer.bytes) + beside(answer.blocks),
					peer: a.peer, unproved: answer.unproved, buffer: answer.buffer,
				}
			}
		},
	}
	if s.Run(ctx) != nil {
		return nil, false
	}
	return got, long
}

// beside returns about how much decoded blocks take beside their bytes. A transaction may have only
// two of these.
func beside(blocks []Block) (n int) {
	const tx, signature = 24, 128 // in memory
	for _, b := range blocks {    // each but the last one shares its commit with the next block
		n += tx*len(b.Txs) + signature*b.LastCommit.Size()
	}
	return n + signature*blocks[len(blocks)-1].Commit.Size()
}

// ask asks one peer. A block that does not fit is re-requested, with the room that it needs.
func (l *loop) ask(ctx context.Context, a *attempt, r request) (*reply, error) {
	proved := l.roster.asking(a.peer)
	defer l.roster.asked(a.peer)
	for again := false; ; again = true {
		buffer := l.buffers.take(r.limit)
		answer, err := callIdle(ctx, a, transport.Call{Method: MethodBlocks, Body: r.encode(), Into: buffer, Received: &a.received, Proved: proved})
		if err != nil {
			l.buffers.give(buffer)
			return nil, err
		}
		needed, says, err := decodeNeed(r, answer)
		if !says {
			a.unproved.Store(!proved && transport.Unproved(a.peer.conn))
			return &reply{request: r, bytes: answer, buffer: buffer, unproved: a.unproved.Load()}, nil
		}
		l.buffers.give(buffer)
		switch {
		case err != nil:
			return nil, err
		case r.from != l.o.Chain.Height()+1:
			return nil, errTurn
		case again || int64(needed) > l.o.Chain.MaxBlockBytes()+countBytes+2*lengthBytes:
			return nil, errors.New("it says that a block needs more bytes than blocks may have")
		}
		r.limit, r.count = needed, 1
	}
}

// callIdle makes a call, and gives it up when its peer sends nothing for too long, be it of another
// answer: it makes one after the other.
func callIdle(ctx context.Context, a *attempt, c transport.Call) ([]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.NewTicker(watchEvery)
	defer watch.Stop()
	done := make(chan struct{})
	defer close(done)
	began, moves := time.Now(), &a.peer.moves
	go func() {
		moved, of, received := began, moves.Load(), a.received.Load()
		for {
			select {
			case <-done:
				return
			case <-watch.C:
			}
			if n := a.received.Load(); n != received {
				received = n
				moves.Add(1)
			}
			if n := moves.Load(); n != of {
				moved, of = time.Now(), n
			}
			if time.Since(moved) >= idle || time.Since(began) > patience {
				cancel(&idleError{began})
				return
			}
		}
	}()
	answer, err := a.peer.conn.Call(ctx, c)
	if err == nil {
		moves.Add(1)
	} else if late := new(idleError); errors.As(context.Cause(ctx), &late) {
		err = late
	}
	return answer, err
}

// buffers are lent to calls, and used again.
type buffers struct {
	mu   sync.Mutex
	free [][]byte // all of the same length
}

const maxFree = 12

func (b *buffers) take(n int) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	if last := len(b.free) - 1; last >= 0 && len(b.free[last]) == n {
		buffer := b.free[last]
		b.free = b.free[:last]
		return buffer
	}
	return make([]byte, n)
}

// give takes a buffer back that nobody uses any more.
func (b *buffers) give(buffer []byte) {
	if len(buffer) > maxAnswer { // of a single long block
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.free) > 0 && len(b.free[0]) != len(buffer) {
		b.free = nil
	}
	if len(b.free) < maxFree {
		b.free = append(b.free, buffer)
	}
}
