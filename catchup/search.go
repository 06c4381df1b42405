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
)

// errIdle: a peer has sent nothing for too long, or has not come to an end.
var errIdle = errors.New("the answer does not come")

// batch is the blocks that one peer has sent.
type batch struct {
	from, to int64
	blocks   []Block
	bytes    int
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

// search asks for blocks from a height on until somebody has sent some; nil: nobody has.
func (l *loop) search(ctx context.Context, r request) (got *batch) {
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
		Prove: func(_ context.Context, _ *attempt, a *reply) (err error) {
			a.blocks, err = decodeAnswer(l.o.ChainID, a.request, a.bytes)
			return err
		},
		Failed: func(a *attempt, err error) bool {
			if l.roster.failed(a.peer, r.from, err, time.Now()) {
				l.lied(a.peer, false, err)
			}
			return false
		},
		Refuted: func(a *attempt, err error) bool {
			l.lied(a.peer, a.unproved.Load(), err)
			return false
		},
		Proved: func(a *attempt, answer *reply) {
			if got == nil {
				got = &batch{
					from: r.from, to: r.from + int64(len(answer.blocks)) - 1, blocks: answer.blocks, bytes: len(answer.bytes),
					peer: a.peer, unproved: answer.unproved, buffer: answer.buffer,
				}
			}
		},
	}
	if s.Run(ctx) != nil {
		return nil
	}
	return got
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
		case again || int64(needed) > l.o.Chain.MaxBlockBytes():
			return nil, errors.New("it says that a block needs more bytes than blocks may have")
		}
		r.limit, r.count = needed, 1
	}
}

// callIdle makes a call, and gives it up when nothing comes for too long.
func callIdle(ctx context.Context, a *attempt, c transport.Call) ([]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.NewTicker(idle)
	defer watch.Stop()
	done := make(chan struct{})
	defer close(done)
	go func() {
		began, last := time.Now(), a.received.Load()
		for {
			select {
			case <-done:
				return
			case <-watch.C:
			}
			now := a.received.Load()
			if now == last || time.Since(began) > patience {
				cancel(errIdle)
				return
			}
			last = now
		}
	}()
	answer, err := a.peer.conn.Call(ctx, c)
	if err != nil && errors.Is(context.Cause(ctx), errIdle) {
		err = errIdle
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
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.free) > 0 && len(b.free[0]) != len(buffer) {
		b.free = nil
	}
	if len(b.free) < maxFree {
		b.free = append(b.free, buffer)
	}
}
