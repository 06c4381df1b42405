package catchup

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-kv/starling/internal/hedge"
	"github.com/starling-kv/starling/transport"
)

// Most blocks come from the first peer asked. If they arrive at less than slowRate, another peer is
// asked in parallel.
const (
	slowAfter = time.Second
	slowRate  = 128 << 10 // bytes per second
	turn      = 5 * time.Second
	// idle is how long an answer may make no progress, and patience how long it may take in total.
	idle     = 10 * time.Second
	patience = time.Minute
	// watchEvery is the interval of checking for progress.
	watchEvery = time.Second
)

var (
	// errTurn: there is no room now for a block that is not the next one.
	errTurn = errors.New("no room for a block that is not the next one")
	// errDoubted: a peer whose last answer was wrong gets one request at a time.
	errDoubted = errors.New("the peer's last answer was wrong, and another request is in flight")
)

// errHeavy: decoding a block would take more memory than the run has.
var errHeavy = errors.New("the first block takes more memory than the node has for blocks")

// idleError: a request had no result. The peer sent nothing for too long, did not finish, or
// reported an impossible length of the next block.
type idleError struct {
	began time.Time // start of the call
	says  string    // the impossible claim; "": none
}

func (e *idleError) Error() string {
	if e.says != "" {
		return e.says
	}
	return "the answer does not arrive"
}

// unprovedError: an answer is wrong, but may have been forged by another sender.
type unprovedError struct{ error }

func (e *unprovedError) Unwrap() error { return e.error }

// blame wraps err as an unprovedError if the answer was unproved.
func blame(err error, unproved bool) error {
	if unproved {
		return &unprovedError{err}
	}
	return err
}

// batch is the blocks that one peer sent.
type batch struct {
	from, to int64
	blocks   []Block
	perHead  int // bytes per block, which determines the size of later requests
	lease    *lease
	peer     *peer
	unproved bool
	buffer   []byte // memory that the blocks refer to
}

// attempt is one peer's part in a search.
type attempt struct {
	peer     *peer
	received atomic.Int64
}

// reply is a peer's answer.
type reply struct {
	request  request
	bytes    []byte
	buffer   []byte
	unproved bool
	lease    *lease
	blocks   []Block // after decoding
	perHead  int
}

// search requests blocks from a height on until some have arrived, or until it gives up for now.
func (l *loop) search(ctx context.Context, r request) (f found) {
	f.span = span{r.from, r.from + int64(r.count) - 1}
	leases := leases{room: &l.room}
	s := hedge.Search[*attempt, *reply]{
		Policy: hedge.Policy{Pace: hedge.ByRate, Start: 1, Most: 2, After: slowAfter, Rate: slowRate, Turn: turn},
		Go:     func(f func()) { l.wg.Go(f) },
		More: func() (list []*attempt, _ <-chan struct{}) {
			for _, p := range l.roster.takeTurn(r.from, time.Now()) {
				list = append(list, &attempt{peer: p})
			}
			return list, nil
		},
		Ask:      func(ctx context.Context, a *attempt) (*reply, error) { return l.ask(ctx, a, r, leases.take()) },
		Received: func(a *attempt) int64 { return a.received.Load() },
		Prove:    func(_ context.Context, _ *attempt, a *reply) error { return l.decode(a) },
		Failed: func(a *attempt, err error) (stop bool) {
			f.later = f.later || errors.Is(err, errTurn)
			if unproved := new(unprovedError); errors.As(err, &unproved) {
				l.lied(a.peer, true, err)
			} else if l.roster.failed(a.peer, r.from, err, time.Now()) {
				l.lied(a.peer, false, err)
			}
			return false
		},
		Refuted: func(a *attempt, err error) (stop bool) {
			unproved := new(unprovedError)
			switch {
			case errors.Is(err, errTurn):
				f.later = true
				return true
			case errors.As(err, &unproved):
				l.lied(a.peer, true, err)
			case errors.Is(err, errHeavy):
				l.roster.failed(a.peer, r.from, err, time.Now())
			default:
				l.lied(a.peer, false, err)
			}
			return false
		},
		Proved: func(a *attempt, answer *reply) {
			if f.batch == nil {
				f.batch = &batch{
					from: r.from, to: r.from + int64(len(answer.blocks)) - 1, blocks: answer.blocks,
					perHead: answer.perHead, lease: answer.lease,
					peer: a.peer, unproved: answer.unproved, buffer: answer.buffer,
				}
			}
		},
	}
	err := s.Run(ctx)
	if err != nil || f.batch == nil {
		f.batch = nil
		leases.end(nil)
		return f
	}
	leases.end(f.batch.lease)
	return f
}

// next reports whether a height is that of the next block to execute.
func (l *loop) next(height int64) bool { return height == l.o.Chain.Height()+1 }

// decode decodes an answer if there is room for it. The memory is estimated before decoding: a
// decoder makes eighty bytes and more from an empty transaction of two bytes. If the blocks
// together need more memory than a run has, only the first ones are decoded. A peer that forged
// such blocks is then refuted, or gets smaller requests; blocks of an honest peer make progress.
func (l *loop) decode(a *reply) error {
	w, err := weighAnswer(a.request, a.bytes, max(l.room.most, decoded*int64(len(a.bytes))))
	a.perHead = w.perHead
	switch {
	case err != nil:
		return blame(err, a.unproved)
	case w.blocks == 0:
		return blame(errHeavy, a.unproved)
	case !a.lease.resize(w.bytes, l.next(a.request.from)):
		return errTurn
	}
	if a.blocks, err = decodeAnswer(l.o.ChainID, a.request, a.bytes, w.blocks); err != nil {
		a.lease.release()
		return blame(err, a.unproved)
	}
	a.lease.resize(2*int64(len(a.bytes))+beside(a.blocks), true)
	return nil
}

// The memory of decoded blocks in addition to their bytes, approximately. A transaction may have
// only two bytes.
func beside(blocks []Block) (n int64) {
	const (
		tx        = 24 // in memory
		signature = 128
		evidence  = 7 // per byte: half of the decoder's memory; the rest is garbage
	)
	for _, b := range blocks { // each block except the last shares its commit with the next block
		n += tx*int64(len(b.Txs)) + signature*int64(b.LastCommit.Size()) + evidence*b.Evidence.ByteSize()
	}
	return n + signature*int64(blocks[len(blocks)-1].Commit.Size())
}

// ask asks one peer. A block that exceeds the limit is requested again if there is room for it.
func (l *loop) ask(ctx context.Context, a *attempt, r request, lease *lease) (_ *reply, err error) {
	proved, may := l.roster.asking(a.peer)
	if !may {
		return nil, errDoubted
	}
	defer l.roster.asked(a.peer)
	defer func() {
		if err != nil {
			lease.release()
		}
	}()
	began, doubtful := time.Now(), false // doubtful: one of the answers was unproved
	for again := false; ; again = true {
		buffer := l.buffers.take(r.limit)
		answer, err := callIdle(ctx, a, transport.Call{
			Method: MethodBlocks, Body: r.encode(), Into: buffer, Received: &a.received, Proved: proved,
		})
		if err != nil {
			l.buffers.give(buffer)
			return nil, err
		}
		unproved := !proved && transport.Unproved(a.peer.conn)
		doubtful = doubtful || unproved
		needed, says, err := decodeNeed(r, answer)
		if !says {
			return &reply{request: r, bytes: answer, buffer: buffer, unproved: unproved, lease: lease}, nil
		}
		l.buffers.give(buffer)
		next := l.next(r.from) // before the limit, which executed blocks may raise
		switch {
		case err != nil:
			return nil, blame(err, unproved)
		case int64(needed) > l.o.Chain.MaxBlockBytes()+countBytes+2*lengthBytes:
			if !next {
				return nil, errTurn
			}
			return nil, blame(&idleError{began, "the peer reports a block larger than blocks may be"}, unproved)
		case again:
			return nil, blame(&idleError{began, "the peer reports again that a block needs more bytes"}, doubtful)
		case !lease.resize(decoded*int64(needed), l.next(r.from)):
			return nil, errTurn
		}
		r.limit, r.count = needed, 1
	}
}

// callIdle makes a call, and gives it up if the peer sends nothing for too long. Progress of any
// other answer of the peer counts, since it sends one answer after the other.
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
				cancel(&idleError{began: began})
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

// buffers is a free list of buffers for calls.
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

// give returns a buffer that is no longer in use.
func (b *buffers) give(buffer []byte) {
	if len(buffer) > maxAnswer { // for a single long block
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
