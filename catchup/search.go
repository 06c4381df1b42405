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

var (
	// errTurn: there is no room now for a block that is not the next one.
	errTurn = errors.New("there is no room for it now, and it is not the next block")
	// errDoubted: a peer whose last answer was wrong is asked one question at a time.
	errDoubted = errors.New("its last answer was wrong, and it has another question already")
)

// errHeavy: a block would take more memory, decoded, than a run has.
var errHeavy = errors.New("its first block takes more memory than a node has for blocks")

// idleError: nothing has come of a question. The peer has sent nothing for too long, has not come
// to an end, or has said about the next block what is true of none.
type idleError struct {
	began time.Time // the call
	says  string    // what cannot be; "": nothing
}

func (e *idleError) Error() string {
	if e.says != "" {
		return e.says
	}
	return "the answer does not come"
}

// unprovedError: an answer is wrong, and may be somebody else's than the peer's.
type unprovedError struct{ error }

func (e *unprovedError) Unwrap() error { return e.error }

// blame returns what is wrong with an answer.
func blame(err error, unproved bool) error {
	if unproved {
		return &unprovedError{err}
	}
	return err
}

// batch is the blocks that one peer has sent.
type batch struct {
	from, to int64
	blocks   []Block
	perHead  int // bytes of a block, by which the next requests are cut
	lease    *lease
	peer     *peer
	unproved bool
	buffer   []byte // what blocks lie in
}

// attempt is one peer in one search.
type attempt struct {
	peer     *peer
	received atomic.Int64
}

// reply is what a peer has answered.
type reply struct {
	request  request
	bytes    []byte
	buffer   []byte
	unproved bool
	lease    *lease
	blocks   []Block // once it was decoded
	perHead  int
}

// search asks for blocks from a height on until somebody has sent some, or it is not worth asking
// now.
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

// next reports whether a height is that of the next block to be executed.
func (l *loop) next(height int64) bool { return height == l.o.Chain.Height()+1 }

// decode decodes an answer, if there is room for what it takes. That is counted before: a decoder
// makes eighty bytes and more out of an empty transaction, which has two. Of blocks that together
// take more than a run has, the first ones are decoded: whoever makes such up has lied, or is asked
// for no more, and honest ones bring the run forward.
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

// beside returns about how much decoded blocks take beside their bytes. A transaction may have only
// two of these.
func beside(blocks []Block) (n int64) {
	const (
		tx        = 24 // in memory
		signature = 128
		evidence  = 7 // for each byte: half of what decoding takes, of which the rest is garbage
	)
	for _, b := range blocks { // each but the last one shares its commit with the next block
		n += tx*int64(len(b.Txs)) + signature*int64(b.LastCommit.Size()) + evidence*b.Evidence.ByteSize()
	}
	return n + signature*int64(blocks[len(blocks)-1].Commit.Size())
}

// ask asks one peer. A block that does not fit is re-requested, if there is room for it.
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
	began, doubtful := time.Now(), false // doubtful: one of its answers came unproved
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
		next := l.next(r.from) // before the limit is read, which blocks between may raise
		switch {
		case err != nil:
			return nil, blame(err, unproved)
		case int64(needed) > l.o.Chain.MaxBlockBytes()+countBytes+2*lengthBytes:
			if !next {
				return nil, errTurn
			}
			return nil, blame(&idleError{began, "it says that a block needs more bytes than blocks may have"}, unproved)
		case again:
			return nil, blame(&idleError{began, "it says again that a block needs more bytes"}, doubtful)
		case !lease.resize(decoded*int64(needed), l.next(r.from)):
			return nil, errTurn
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
