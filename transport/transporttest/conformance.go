package transporttest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/transport"
)

const (
	chain  = "chain"
	server = 1 // the node that listens
	client = 2 // the node that dials
	// patience ends a test that hangs. It does not decide the outcome of any test.
	patience = 5 * time.Minute
)

// Methods of the suite. Their numbers have no meaning to a transport; testRandom uses them for
// different endings.
const (
	someMethod transport.Method = 4 // is answered
	hangMethod transport.Method = 8 // waits until it is cancelled
	goneMethod transport.Method = 9
)

// openMethods are also answered to a dialer without a chain id.
var openMethods = []transport.Method{1, 10}

// Run checks that a transport fulfils the contract of package transport.
func Run(t *testing.T, tr Transport) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, Transport)
	}{
		{"identity", testIdentity},
		{"wrong peers", testWrongPeers},
		{"strangers", testUnknownChain},
		{"dial and context", testDialContext},
		{"sizes", testSizes},
		{"too long", testTooLong},
		{"errors", testErrors},
		{"bodies", testBodies},
		{"memory is not shared", testMemory},
		{"any order", testAnyOrder},
		{"concurrency and its limit", testConcurrency},
		{"cancel", testCancel},
		{"cancel while waiting for a slot", testCancelWaiting},
		{"expired context", testExpired},
		{"lent buffers", testLentBuffers},
		{"close by the client", testCloseClient},
		{"close by the server", testCloseServer},
		{"many connections", testManyConns},
		{"random", testRandom},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, tr) })
	}
}

// world is a server, a dialer and a connection between them.
type world struct {
	node Node
	conn transport.Conn
	ctx  context.Context
}

func newWorld(t *testing.T, tr Transport, maxCalls int, h transport.HandlerFunc) world {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	node := tr.Listen(t, Options{Node: server, ChainID: chain, Handler: h, OpenMethods: openMethods, MaxCalls: maxCalls})
	conn, err := tr.Dialer(t, Options{Node: client, ChainID: chain}).Dial(ctx, node.Address)
	require.NoError(t, err)
	t.Cleanup(func() { hangUp(conn) })
	return world{node, conn, ctx}
}

// hangUp closes a connection at the end of a test and ignores the error.
func hangUp(c io.Closer) { c.Close() }

// call makes a call whose answer the transport allocates.
func (w world) call(body []byte) ([]byte, error) {
	return w.conn.Call(w.ctx, transport.Call{Method: someMethod, Body: body, Max: 1 << 30})
}

// echo answers with the body.
func echo(_ context.Context, r transport.Request) ([]byte, error) { return r.Body, nil }

// wanted answers with as many pseudo-random bytes as the body requests.
func wanted(_ context.Context, r transport.Request) ([]byte, error) {
	n, used := binary.Uvarint(r.Body)
	if used <= 0 {
		return nil, transport.ErrRefused
	}
	return noise(r.Body, int(n)), nil
}

// noise returns n pseudo-random bytes derived from a seed.
func noise(seed []byte, n int) []byte {
	var key [32]byte
	copy(key[:], seed)
	b := make([]byte, n)
	rand.NewChaCha8(key).Read(b) //nolint:errcheck // it never fails
	return b
}

func want(n int, salt byte) []byte { return append(binary.AppendUvarint(nil, uint64(n)), salt) }

func wait(t *testing.T, w world, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-w.ctx.Done():
		require.Fail(t, "it never happened")
	}
}

func testIdentity(t *testing.T, tr Transport) {
	seen := make(chan transport.Request, 1)
	w := newWorld(t, tr, 0, func(_ context.Context, r transport.Request) ([]byte, error) {
		seen <- r
		return nil, nil
	})
	require.Equal(t, ID(server), w.node.Address.ID)
	require.Equal(t, w.node.Address, w.conn.Remote())
	_, err := w.conn.Call(w.ctx, transport.Call{Method: goneMethod, Body: []byte("body")})
	require.NoError(t, err)
	r := <-seen
	require.Equal(t, ID(client), r.Peer)
	require.NotEmpty(t, r.Host)
	require.NotContains(t, r.Host, ":") // loopback over IPv4
	require.Equal(t, goneMethod, r.Method)
	require.Equal(t, "body", string(r.Body))

	anybody, err := tr.Dialer(t, Options{Node: client, ChainID: chain}).Dial(w.ctx, transport.Address{HostPort: w.node.Address.HostPort})
	require.NoError(t, err)
	defer hangUp(anybody)
	require.Equal(t, w.node.Address, anybody.Remote(), "the connection knows the peer's ID")
}

func testWrongPeers(t *testing.T, tr Transport) {
	w := newWorld(t, tr, 0, echo)
	a := w.node.Address
	a.ID = ID(3)
	_, err := tr.Dialer(t, Options{Node: client, ChainID: chain}).Dial(w.ctx, a)
	require.ErrorIs(t, err, transport.ErrWrongID)
	_, err = tr.Dialer(t, Options{Node: client, ChainID: "other"}).Dial(w.ctx, w.node.Address)
	require.ErrorIs(t, err, transport.ErrWrongChain)
	got, err := w.call([]byte("x"))
	require.NoError(t, err, "failed dials do not affect others")
	require.Equal(t, "x", string(got))
}

func testUnknownChain(t *testing.T, tr Transport) {
	w := newWorld(t, tr, 0, echo)
	c, err := tr.Dialer(t, Options{Node: client}).Dial(w.ctx, w.node.Address)
	require.NoError(t, err)
	defer hangUp(c)
	for m := range transport.Method(12) {
		got, err := c.Call(w.ctx, transport.Call{Method: m, Body: []byte("x"), Max: 1})
		if slices.Contains(openMethods, m) {
			require.NoError(t, err)
			require.Equal(t, "x", string(got))
		} else {
			require.ErrorIs(t, err, transport.ErrRefused)
		}
	}
	require.Equal(t, chain, c.ChainID())
}

func testDialContext(t *testing.T, tr Transport) {
	w := newWorld(t, tr, 0, echo)
	d := tr.Dialer(t, Options{Node: client, ChainID: chain})
	ctx, cancel := context.WithCancel(w.ctx)
	c, err := d.Dial(ctx, w.node.Address)
	require.NoError(t, err)
	defer hangUp(c)
	cancel()
	_, err = c.Call(w.ctx, transport.Call{Method: someMethod})
	require.NoError(t, err, "the connection outlives the context of its dial")
	_, err = d.Dial(ctx, w.node.Address)
	require.ErrorIs(t, err, context.Canceled)
}

func testSizes(t *testing.T, tr Transport) {
	w := newWorld(t, tr, 0, wanted)
	for i, n := range []int{0, 1, 13, 4095, 4096, 4097, 16 << 10, 64<<10 - 1, 64 << 10, 64<<10 + 1, 1 << 20, 5<<20 + 7} {
		body := want(n, byte(i))
		expected := noise(body, n)
		for _, spare := range []int{0, 100} {
			into := bytes.Repeat([]byte{0xee}, n+spare)
			var received atomic.Int64
			got, err := w.conn.Call(w.ctx, transport.Call{Method: someMethod, Body: body, Into: into, Received: &received})
			require.NoError(t, err, "%d bytes", n)
			require.True(t, bytes.Equal(expected, got), "%d bytes", n)
			require.Equal(t, int64(n), received.Load())
			if n > 0 {
				require.Same(t, &into[0], &got[0], "the answer lies in the buffer")
			}
			require.Equal(t, bytes.Repeat([]byte{0xee}, spare), into[n:], "the rest of the buffer is left alone")

			got, err = w.conn.Call(w.ctx, transport.Call{Method: someMethod, Body: body, Max: n + spare})
			require.NoError(t, err, "%d bytes", n)
			require.True(t, bytes.Equal(expected, got), "%d bytes", n)
		}
	}
}

func testTooLong(t *testing.T, tr Transport) {
	w := newWorld(t, tr, 0, wanted)
	for _, n := range []int{1, 100, 64 << 10, 3 << 20} {
		for _, c := range []transport.Call{{Into: make([]byte, n-1)}, {Max: n - 1}, {}, {Into: []byte{}}, {Into: []byte{}, Max: n}} {
			c.Method, c.Body = someMethod, want(n, 0)
			_, err := w.conn.Call(w.ctx, c)
			require.ErrorIs(t, err, transport.ErrTooLong)
			require.NotErrorIs(t, err, transport.ErrClosed)
			require.True(t, bytes.Equal(make([]byte, len(c.Into)), c.Into), "nothing was written")
		}
	}
	got, err := w.call(want(10, 0))
	require.NoError(t, err, "the connection stays open")
	require.Len(t, got, 10)
}

func testErrors(t *testing.T, tr Transport) {
	answers := map[string]error{
		"gone": transport.ErrGone, "busy": transport.ErrBusy, "refused": transport.ErrRefused, "failed": errors.New("secret"),
	}
	w := newWorld(t, tr, 0, func(_ context.Context, r transport.Request) ([]byte, error) {
		return []byte("ignored"), fmt.Errorf("secret: %w", answers[string(r.Body)])
	})
	answers = map[string]error{
		"gone": transport.ErrGone, "busy": transport.ErrBusy, "refused": transport.ErrRefused, "failed": transport.ErrFailed,
	}
	all := []error{
		transport.ErrGone, transport.ErrBusy, transport.ErrRefused, transport.ErrFailed,
		transport.ErrClosed, transport.ErrTooLong, transport.ErrProtocol,
	}
	for body, expected := range answers {
		into := make([]byte, 10)
		_, err := w.conn.Call(w.ctx, transport.Call{Method: someMethod, Body: []byte(body), Into: into})
		for _, e := range all {
			require.Equal(t, errors.Is(expected, e), errors.Is(err, e), "%s: %v is %v", body, err, e)
		}
		require.NotContains(t, err.Error(), "secret")
		require.Equal(t, make([]byte, 10), into)
	}
}

func testBodies(t *testing.T, tr Transport) {
	w := newWorld(t, tr, 0, echo)
	for _, n := range []int{0, 1, 4096, 4097, 64 << 10, transport.MaxBody} {
		body := noise([]byte{byte(n)}, n)
		got, err := w.call(body)
		require.NoError(t, err)
		require.True(t, bytes.Equal(body, got), "%d bytes", n)
	}
	_, err := w.call(make([]byte, transport.MaxBody+1))
	require.Error(t, err)
	require.NotErrorIs(t, err, transport.ErrClosed)
	_, err = w.call(nil)
	require.NoError(t, err, "the connection stays open")
}

// testMemory lets both sides modify their own buffers.
func testMemory(t *testing.T, tr Transport) {
	shared := bytes.Repeat([]byte("answer"), 20_000)
	original := bytes.Clone(shared)
	w := newWorld(t, tr, 0, func(_ context.Context, r transport.Request) ([]byte, error) {
		clear(r.Body)
		return shared, nil
	})
	body := []byte("body")
	for range 3 {
		for _, c := range []transport.Call{{Into: make([]byte, len(shared))}, {Max: len(shared)}} {
			c.Method, c.Body = someMethod, body
			got, err := w.conn.Call(w.ctx, c)
			require.NoError(t, err)
			require.True(t, bytes.Equal(original, got))
			require.Equal(t, "body", string(body))
			clear(got)
		}
	}
	require.True(t, bytes.Equal(original, shared))
}

// testAnyOrder answers the second request before the first.
func testAnyOrder(t *testing.T, tr Transport) {
	second, began := make(chan struct{}), make(chan struct{})
	w := newWorld(t, tr, 0, func(ctx context.Context, r transport.Request) ([]byte, error) {
		if string(r.Body) == "first" {
			close(began)
			select {
			case <-second:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		return r.Body, nil
	})
	first := make(chan error, 1)
	go func() {
		_, err := w.call([]byte("first"))
		first <- err
	}()
	wait(t, w, began)
	got, err := w.call([]byte("second"))
	require.NoError(t, err)
	require.Equal(t, "second", string(got))
	close(second)
	require.NoError(t, <-first)
}

// testConcurrency requires that as many handlers as the server allows run at once, and never more.
func testConcurrency(t *testing.T, tr Transport) {
	const allowed, calls = 4, 40
	var running, arrived atomic.Int64
	met := make(chan struct{})
	w := newWorld(t, tr, allowed, func(ctx context.Context, r transport.Request) ([]byte, error) {
		if now := running.Add(1); now > allowed {
			return nil, fmt.Errorf("%d handlers", now)
		}
		defer running.Add(-1)
		if arrived.Add(1) == allowed {
			close(met)
		}
		select {
		case <-met:
			return r.Body, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
	var wg sync.WaitGroup
	for i := range calls {
		wg.Go(func() {
			got, err := w.call([]byte{byte(i)})
			if err != nil || len(got) != 1 || got[0] != byte(i) {
				t.Errorf("call %d: %x, %v", i, got, err)
			}
		})
	}
	wg.Wait()
	require.Equal(t, int64(calls), arrived.Load())
}

func testCancel(t *testing.T, tr Transport) {
	began, ended := make(chan struct{}), make(chan struct{})
	w := newWorld(t, tr, 1, func(ctx context.Context, r transport.Request) ([]byte, error) {
		if string(r.Body) != "hang" {
			return r.Body, nil
		}
		close(began)
		<-ctx.Done()
		close(ended)
		return []byte("too late"), nil
	})
	ctx, cancel := context.WithCancel(w.ctx)
	into := []byte("lent buffer")
	result := make(chan error, 1)
	go func() {
		_, err := w.conn.Call(ctx, transport.Call{Method: someMethod, Body: []byte("hang"), Into: into})
		result <- err
	}()
	wait(t, w, began)
	cancel()
	require.ErrorIs(t, <-result, context.Canceled)
	wait(t, w, ended) // the handler's context has ended
	got, err := w.call([]byte("next"))
	require.NoError(t, err, "the connection stays open, and its only slot is free again")
	require.Equal(t, "next", string(got))
	require.Equal(t, "lent buffer", string(into))
}

func testCancelWaiting(t *testing.T, tr Transport) {
	began, release := make(chan struct{}), make(chan struct{})
	var served atomic.Int64
	w := newWorld(t, tr, 1, func(ctx context.Context, r transport.Request) ([]byte, error) {
		if served.Add(1) == 1 {
			close(began)
			select {
			case <-release:
			case <-ctx.Done():
			}
		}
		return r.Body, nil
	})
	first := make(chan error, 1)
	go func() {
		_, err := w.call(nil)
		first <- err
	}()
	wait(t, w, began)
	ctx, cancel := context.WithCancel(w.ctx)
	second := make(chan error, 1)
	go func() {
		_, err := w.conn.Call(ctx, transport.Call{Method: someMethod})
		second <- err
	}()
	cancel()
	require.ErrorIs(t, <-second, context.Canceled)
	close(release)
	require.NoError(t, <-first)
	_, err := w.call(nil)
	require.NoError(t, err)
	require.Equal(t, int64(2), served.Load(), "a request cancelled before sending is not served")
}

func testExpired(t *testing.T, tr Transport) {
	var served atomic.Int64
	w := newWorld(t, tr, 0, func(context.Context, transport.Request) ([]byte, error) {
		served.Add(1)
		return nil, nil
	})
	ctx, cancel := context.WithCancel(w.ctx)
	cancel()
	_, err := w.conn.Call(ctx, transport.Call{Method: someMethod})
	require.ErrorIs(t, err, context.Canceled)
	_, err = w.call(nil)
	require.NoError(t, err)
	require.Equal(t, int64(1), served.Load())
}

// testLentBuffers cancels calls whose answers are under way, and then writes to the buffers at
// once. The race detector reports late writes of the transport.
func testLentBuffers(t *testing.T, tr Transport) {
	const size, rounds = 300 << 10, 12
	w := newWorld(t, tr, 4, wanted)
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			into := make([]byte, size)
			for i := range rounds {
				body := want(size, byte(worker))
				ctx, cancel := context.WithCancel(w.ctx)
				var received atomic.Int64
				// Ends the call after some bytes have arrived, each time at another point.
				go func() {
					defer cancel()
					for received.Load() <= int64(i)*(size/rounds) && ctx.Err() == nil {
						runtime.Gosched()
					}
				}()
				got, err := w.conn.Call(ctx, transport.Call{Method: someMethod, Body: body, Into: into, Received: &received})
				cancel()
				switch {
				case err == nil && !bytes.Equal(got, noise(body, size)):
					t.Error("a wrong answer")
				case !bytes.Equal(into[:received.Load()], noise(body, size)[:received.Load()]):
					t.Error("received bytes are not in the buffer")
				case err != nil && !errors.Is(err, context.Canceled):
					t.Error(err)
				}
				ours := bytes.Repeat([]byte{byte(i)}, size)
				copy(into, ours)
				clear(body)
				if _, err := w.call(want(1, 0)); err != nil { // gives late pieces time to arrive
					t.Error(err)
				}
				if !bytes.Equal(ours, into) {
					t.Error("a buffer was written to after its call")
				}
			}
		})
	}
	wg.Wait()
}

// hanging starts a server whose handlers wait for their contexts to end, and makes calls to it.
func hanging(t *testing.T, tr Transport, calls int) (w world, results chan error, handlers *sync.WaitGroup) {
	t.Helper()
	began := make(chan struct{}, calls)
	handlers = &sync.WaitGroup{}
	handlers.Add(calls)
	w = newWorld(t, tr, calls, func(ctx context.Context, _ transport.Request) ([]byte, error) {
		began <- struct{}{}
		<-ctx.Done()
		handlers.Done()
		return nil, ctx.Err()
	})
	results = make(chan error, calls+1)
	for range calls + 1 { // one waits for a slot
		go func() {
			_, err := w.call(nil)
			results <- err
		}()
	}
	for range calls {
		wait(t, w, began)
	}
	return w, results, handlers
}

func requireClosed(t *testing.T, w world, results chan error, calls int) {
	t.Helper()
	for range calls + 1 {
		require.ErrorIs(t, <-results, transport.ErrClosed)
	}
	wait(t, w, w.conn.Done())
	require.ErrorIs(t, w.conn.Err(), transport.ErrClosed)
	require.NotErrorIs(t, w.conn.Err(), transport.ErrProtocol)
	_, err := w.call(nil)
	require.ErrorIs(t, err, transport.ErrClosed)
}

func testCloseClient(t *testing.T, tr Transport) {
	w, results, handlers := hanging(t, tr, 3)
	select {
	case <-w.conn.Done():
		require.Fail(t, "a call ended too early")
	default:
		require.NoError(t, w.conn.Err())
	}
	require.NoError(t, w.conn.Close())
	requireClosed(t, w, results, 3)
	handlers.Wait() // their contexts ended with the connection
	require.NoError(t, w.conn.Close())
}

func testCloseServer(t *testing.T, tr Transport) {
	w, results, handlers := hanging(t, tr, 3)
	w.node.Close()
	handlers.Wait()
	requireClosed(t, w, results, 3)
	_, err := tr.Dialer(t, Options{Node: client, ChainID: chain}).Dial(w.ctx, w.node.Address)
	require.Error(t, err)
}

func testManyConns(t *testing.T, tr Transport) {
	const conns, calls = 12, 8
	w := newWorld(t, tr, 0, wanted)
	var wg sync.WaitGroup
	for i := range conns {
		wg.Go(func() {
			c, err := tr.Dialer(t, Options{Node: client + i, ChainID: chain}).Dial(w.ctx, w.node.Address)
			if err != nil {
				t.Error(err)
				return
			}
			defer hangUp(c)
			for j := range calls {
				body := want(10_000, byte(i*calls+j))
				got, err := c.Call(w.ctx, transport.Call{Method: someMethod, Body: body, Max: 10_000})
				if err != nil || !bytes.Equal(got, noise(body, 10_000)) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// testRandom mixes all kinds of calls on one connection. The expected result of each call is known
// beforehand.
func testRandom(t *testing.T, tr Transport) {
	seed := seeds.New(t)
	w := newWorld(t, tr, 8, func(ctx context.Context, r transport.Request) ([]byte, error) {
		switch r.Method {
		case someMethod:
			return wanted(ctx, r)
		case goneMethod:
			return nil, transport.ErrGone
		case hangMethod:
			<-ctx.Done()
		}
		return nil, transport.ErrRefused
	})
	var wg sync.WaitGroup
	for worker := range 12 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(worker))) //nolint:gosec // must be reproducible
			for range 40 {
				if err := randomCall(w, rnd); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func randomCall(w world, rnd *rand.Rand) error {
	n := rnd.IntN(1 << rnd.IntN(19))
	body := want(n, byte(rnd.Uint32()))
	var expected error
	c := transport.Call{Method: someMethod, Body: body}
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	switch rnd.IntN(6) {
	case 0:
		c.Method, expected = goneMethod, transport.ErrGone
	case 1:
		c.Method, expected = hangMethod, context.Canceled
		go cancel()
	case 2:
		c.Max, expected = n/2, transport.ErrTooLong
		if n == 0 {
			expected = nil
		}
	case 3:
		c.Max = n
	default:
		c.Into = make([]byte, n+rnd.IntN(10))
	}
	got, err := w.conn.Call(ctx, c)
	if !errors.Is(err, expected) || err == nil && !bytes.Equal(got, noise(body, n)) {
		return fmt.Errorf("method %d, %d bytes: %w instead of %w, or wrong bytes", c.Method, n, err, expected)
	}
	return nil
}
