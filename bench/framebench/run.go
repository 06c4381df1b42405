package framebench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-kv/starling/bench/harness"
)

// Options are what a run is asked for.
type Options struct {
	MB     int // MiB of large answers in a contestant's turn
	Small  int // small calls in a turn, alone and beside large ones
	Rounds int
	Flight int // large calls under way
	Seed   uint64
}

// Check returns an error that names the flag that is out of range.
func (o Options) Check() error {
	for _, f := range []struct {
		name            string
		is, least, most int
	}{{"mb", o.MB, 1, 65536}, {"small", o.Small, 1, 100_000}, {"rounds", o.Rounds, 1, 1000}, {"flight", o.Flight, 1, 15}} {
		if f.is < f.least || f.is > f.most {
			return fmt.Errorf("--%s is %d, it must be from %d to %d", f.name, f.is, f.least, f.most)
		}
	}
	return nil
}

const (
	largeBytes  = 700_000  // about a chunk
	smallBytes  = 200      // about a status
	hugeBytes   = 64 << 20 // of which a caller cancels most
	cancelAfter = 1 << 20  // bytes of it that have come
	cancels     = 5        // in a turn
	conns       = 8        // opened to see what one keeps in memory
)

// entrant is a contestant at work.
type entrant struct {
	contestant
	server  server
	conn    conn
	answer  []byte
	buffers [][]byte // one for each large call under way
	samples []sample
}

// Run measures. It reports its progress, and closes all connections in any case.
func Run(ctx context.Context, o Options, progress *harness.Progress) (*Result, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	defer progress.Run()()
	answer := randomBytes(o.Seed, hugeBytes)
	var entrants []*entrant
	defer func() {
		for _, e := range entrants {
			e.close()
		}
	}()
	for _, c := range contestants() {
		e := &entrant{contestant: c, answer: answer}
		for range o.Flight {
			e.buffers = append(e.buffers, make([]byte, largeBytes))
		}
		entrants = append(entrants, e)
		if err := e.start(ctx); err != nil {
			return nil, failed(ctx, c.name, err)
		}
	}
	progress.Begin("calls", "turns", (1+o.Rounds)*len(entrants))
	// The first round is not counted: it opens windows, and checks what arrives.
	err := harness.InTurns(1+o.Rounds, entrants, func(round int, e *entrant) error {
		progress.Working(e.name)
		defer progress.Add(1)
		s, err := e.turn(ctx, o)
		if err != nil {
			return failed(ctx, e.name, err)
		}
		if round > 0 {
			e.samples = append(e.samples, s)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	result := &Result{MB: o.MB, Small: o.Small, Rounds: o.Rounds, Flight: o.Flight, Seed: o.Seed, Machine: harness.ThisMachine()}
	for _, e := range entrants {
		kept, err := e.kept(ctx)
		if err != nil {
			return nil, failed(ctx, e.name, err)
		}
		result.Rows = append(result.Rows, newRow(e, entrants[0], kept))
	}
	return result, nil
}

func failed(ctx context.Context, name string, err error) error {
	if ctx.Err() != nil {
		return harness.ErrInterrupted
	}
	return fmt.Errorf("%s: %w", name, err)
}

func randomBytes(seed uint64, n int) []byte {
	rng := rand.New(rand.NewPCG(seed, 0))
	b := make([]byte, 0, n+8)
	for len(b) < n {
		b = binary.BigEndian.AppendUint64(b, rng.Uint64())
	}
	return b[:n]
}

func (e *entrant) start(ctx context.Context) (err error) {
	if e.server, err = e.contestant.start(e.answer); err != nil {
		return err
	}
	e.conn, err = e.server.dial(ctx)
	return err
}

func (e *entrant) close() {
	if e.conn != nil {
		e.conn.close()
	}
	if e.server != nil {
		e.server.close()
	}
}

// sample is what one contestant did in one round.
type sample struct {
	cpu, wall     time.Duration // of the large answers
	calls         int           // large ones
	allocs, alloc uint64        // of the large answers
	alone, beside []float64     // µs of each small call
	afterCancel   []float64     // ms from a cancel until a small call is answered
	stillSent     []float64     // bytes that the server sent meanwhile
}

func (e *entrant) turn(ctx context.Context, o Options) (s sample, err error) {
	if err := e.large(ctx, o, &s); err != nil {
		return s, err
	}
	if s.alone, err = e.small(ctx, o.Small); err != nil {
		return s, err
	}
	if s.beside, err = e.smallBesideLarge(ctx, o); err != nil {
		return s, err
	}
	return s, e.cancel(ctx, &s)
}

// large fetches large answers, several at a time.
func (e *entrant) large(ctx context.Context, o Options, s *sample) error {
	s.calls = max(o.Flight, o.MB<<20/largeBytes)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	cpu, began := harness.CPUTime(), time.Now()
	var left atomic.Int64
	left.Store(int64(s.calls))
	err := e.inFlight(ctx, func(into []byte) (bool, error) {
		if left.Add(-1) < 0 {
			return false, nil
		}
		return true, e.fetch(ctx, into)
	})
	s.wall, s.cpu = time.Since(began), harness.CPUTime().Sub(cpu).Total()
	runtime.ReadMemStats(&after)
	s.allocs, s.alloc = after.Mallocs-before.Mallocs, after.TotalAlloc-before.TotalAlloc
	return err
}

// inFlight calls f from as many goroutines as there are buffers, until it returns false.
func (e *entrant) inFlight(ctx context.Context, f func(into []byte) (bool, error)) error {
	var wg sync.WaitGroup
	failures := make([]error, len(e.buffers))
	for i, into := range e.buffers {
		wg.Go(func() {
			for more := true; more && failures[i] == nil && ctx.Err() == nil; {
				more, failures[i] = f(into)
			}
		})
	}
	wg.Wait()
	return errors.Join(failures...)
}

var errContent = errors.New("an answer is not what was sent")

// fetch makes a call and looks at both ends of the answer.
func (e *entrant) fetch(ctx context.Context, into []byte) error {
	ends := min(len(into), 64)
	clear(into[:ends])
	clear(into[len(into)-ends:])
	var received atomic.Int64
	if err := e.conn.call(ctx, into, &received); err != nil {
		return err
	}
	want := e.answer[:len(into)]
	if received.Load() != int64(len(into)) || !bytes.Equal(into[:ends], want[:ends]) ||
		!bytes.Equal(into[len(into)-ends:], want[len(want)-ends:]) {
		return errContent
	}
	return nil
}

// small makes small calls one after another, and returns how long each took, in µs.
func (e *entrant) small(ctx context.Context, n int) (took []float64, err error) {
	into := make([]byte, smallBytes)
	for range n {
		began := time.Now()
		if err := e.fetch(ctx, into); err != nil {
			return nil, err
		}
		took = append(took, float64(time.Since(began))/float64(time.Microsecond))
	}
	return took, nil
}

// smallBesideLarge is small while large answers are under way all the time.
func (e *entrant) smallBesideLarge(ctx context.Context, o Options) (took []float64, err error) {
	var over atomic.Bool
	var large sync.WaitGroup
	var failure error
	flowing := make(chan struct{}, o.Flight)
	large.Go(func() {
		failure = e.inFlight(ctx, func(into []byte) (bool, error) {
			err := e.fetch(ctx, into)
			select {
			case flowing <- struct{}{}:
			default:
			}
			return !over.Load(), err
		})
		close(flowing)
	})
	<-flowing
	took, err = e.small(ctx, o.Small)
	over.Store(true)
	large.Wait()
	return took, errors.Join(err, failure)
}

// cancel begins to fetch a huge answer, cancels the call, and makes a small one.
func (e *entrant) cancel(ctx context.Context, s *sample) error {
	into, small := make([]byte, hugeBytes), make([]byte, smallBytes)
	for range cancels {
		call, stop := context.WithCancel(ctx)
		var received atomic.Int64
		ended := make(chan error, 1)
		go func() { ended <- e.conn.call(call, into, &received) }()
		for received.Load() < cancelAfter && ctx.Err() == nil && len(ended) == 0 {
			runtime.Gosched()
		}
		before, began := e.server.sent(), time.Now()
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			return fmt.Errorf("a cancelled call ended with %w", errors.Join(err, errContent))
		}
		if err := e.fetch(ctx, small); err != nil {
			return err
		}
		s.afterCancel = append(s.afterCancel, float64(time.Since(began))/float64(time.Millisecond))
		s.stillSent = append(s.stillSent, float64(e.server.sent()-before))
	}
	return nil
}

// kept is how many bytes of the heap a connection keeps, on both sides together, after an answer.
func (e *entrant) kept(ctx context.Context) (float64, error) {
	before := heap()
	var opened []conn
	defer func() {
		for _, c := range opened {
			c.close()
		}
	}()
	into := make([]byte, largeBytes)
	var received atomic.Int64
	for range conns {
		c, err := e.server.dial(ctx)
		if err != nil {
			return 0, err
		}
		opened = append(opened, c)
		if err := c.call(ctx, into, &received); err != nil {
			return 0, err
		}
	}
	return max(0, (heap()-before)/conns), nil
}

// heap is the number of bytes reachable: what pools keep is gone after two collections.
func heap() float64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc)
}
