package rdma

import (
	"bytes"
	"context"
	"crypto/sha256"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/bubble"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/rdma/internal/verbs"
	"github.com/starling-kv/starling/transport/rdma/internal/verbs/verbstest"
	"github.com/starling-kv/starling/transport/tcp"
)

// hashed answers a request with the hash of its body.
func hashed(_ context.Context, r transport.Request) ([]byte, error) {
	h := sha256.Sum256(r.Body)
	return h[:], nil
}

// TestBodies: bodies of 4 to 128 KiB bypass TLS, including those of calls with slots, and more at
// once than there are places.
func TestBodies(t *testing.T) {
	var received, sent atomic.Int64
	server := loopback{memory: new(verbstest.Fabric), retry: time.Millisecond, options: func(o *Options) {
		o.Hooks.Received = func(_ transport.ID, n int) { received.Add(int64(n)) }
	}}
	dialer := loopback{memory: server.memory, retry: time.Millisecond, options: func(o *Options) {
		o.Hooks.Sent = func(_ transport.ID, n int) { sent.Add(int64(n)) }
	}}
	conn := connect(t, server, dialer, hashed)
	require.True(t, conn.(*tcp.Conn).HasPath())
	want := int64(0)
	for _, n := range []int{1, 4<<10 - 1, 4 << 10, 100_000, 128 << 10, 128<<10 + 1, 1 << 20} {
		body := bytes.Repeat([]byte{byte(n)}, n)
		hash := sha256.Sum256(body)
		got, err := conn.Call(t.Context(), transport.Call{Method: someMethod, Body: body, Max: 32})
		require.NoError(t, err)
		require.Equal(t, hash[:], got)
		got, err = conn.Call(t.Context(), transport.Call{Method: someMethod, Body: body, Into: make([]byte, 20_000)})
		require.NoError(t, err)
		require.Equal(t, hash[:], got)
		if n >= 4<<10 && n <= 128<<10 {
			want += 2 * int64(n)
		}
	}
	require.Equal(t, want, received.Load())
	require.Eventually(t, func() bool { return sent.Load() == want }, patience, time.Millisecond, "the completion may arrive after the answer")
	var callers sync.WaitGroup
	for i := range 4 * bodies {
		callers.Go(func() {
			body := bytes.Repeat([]byte{byte(i)}, 5000+i)
			hash := sha256.Sum256(body)
			for range 20 {
				got, err := conn.Call(t.Context(), transport.Call{Method: someMethod, Body: body, Max: 32})
				if err != nil || !bytes.Equal(hash[:], got) {
					t.Errorf("%x, %v", got, err)
				}
			}
		})
	}
	callers.Wait()
	require.False(t, transport.Unproved(conn), "its hash proves a body")
}

// TestBodiesAreGivenUp cancels calls at any moment while their bodies are under way. Their places
// are reused, and late writes do no damage. A connection has fewer cancels than a server takes for
// a flood, even if all of them come after the answers.
func TestBodiesAreGivenUp(t *testing.T) {
	for range 8 {
		giveUpBodies(t, 8, 24)
	}
}

func giveUpBodies(t *testing.T, callers, calls int) {
	var down atomic.Int64
	memory := new(verbstest.Fabric)
	l := loopback{memory: memory, retry: time.Millisecond, options: func(o *Options) {
		o.Hooks.Down = func(_ transport.ID, why error) { down.Add(1) }
	}}
	conn := connect(t, l, l, hashed)
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for n := range calls {
				body := bytes.Repeat([]byte{byte(i), byte(n)}, 4000)
				hash := sha256.Sum256(body)
				ctx, cancel := context.WithCancel(t.Context())
				if n%2 == 0 {
					go cancel()
				}
				got, err := conn.Call(ctx, transport.Call{Method: someMethod, Body: body, Max: 32})
				if err == nil && !bytes.Equal(hash[:], got) || err != nil && ctx.Err() == nil {
					t.Errorf("%x, %v", got, err)
				}
				cancel()
			}
		})
	}
	all.Wait()
	require.Zero(t, down.Load(), "no path has ended")
	require.NoError(t, conn.Err())
}

// TestBodyIsLost: the cable is cut, or a body is damaged on the way. The call is repeated over TLS.
func TestBodyIsLost(t *testing.T) {
	for name, fail := range map[string]func(*verbstest.Fabric){
		"cut":     func(f *verbstest.Fabric) { f.Cut(true) },
		"damaged": func(f *verbstest.Fabric) { f.Fail(verbstest.Faults{Seed: 1, Alter: 1}) },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, nil, func(t *testing.T, conn transport.Conn, memory *verbstest.Fabric) {
				fail(memory)
				began := time.Now()
				body := bytes.Repeat([]byte("b"), 10_000)
				got, err := conn.Call(t.Context(), transport.Call{Method: someMethod, Body: body, Max: 10_000})
				require.NoError(t, err)
				require.Equal(t, body, got)
				require.Less(t, time.Since(began), 2*time.Second)
				memory.Cut(false)
				memory.Fail(verbstest.Faults{})
				bubble.Sleep(61 * time.Second)
				got, err = conn.Call(t.Context(), transport.Call{Method: someMethod, Body: body, Max: 10_000})
				require.NoError(t, err)
				require.Equal(t, body, got)
			})
		})
	}
}

// TestBodyLies: bodies without a frame, and frames that do not match their bodies, end the path.
func TestBodyLies(t *testing.T) {
	number := slotNumber(1, 3)
	for name, lie := range map[string]func(*testing.T, *couple, *writer){
		"two bodies at a place": func(t *testing.T, c *couple, _ *writer) {
			c.write(t, 0, 5000, number)
			c.write(t, 0, 5000, slotNumber(2, 3))
		},
		"a body twice": func(t *testing.T, c *couple, w *writer) {
			require.NoError(t, w.Expect(number, 5000).Wait(t.Context()), "it was not released")
			c.write(t, 0, 5000, number)
		},
		"a flood of immediates":     func(t *testing.T, c *couple, _ *writer) { floodBodies(t, c) },
		"a place that there is not": func(t *testing.T, c *couple, _ *writer) { c.write(t, 0, 5000, slotNumber(1, bodies)) },
		"the bit of the last piece": func(t *testing.T, c *couple, _ *writer) { c.write(t, 0, 5000, number|immediateLast) },
		"another length": func(t *testing.T, c *couple, w *writer) {
			w.Expect(number, 6000)
			c.write(t, 0, 5000, number)
		},
		"a body that is too long": func(t *testing.T, c *couple, _ *writer) { c.write(t, 0, bodyUnit+1, number) },
		"two frames of a place": func(t *testing.T, _ *couple, w *writer) {
			w.Expect(number, 5000)
			require.Error(t, w.Expect(number, 5000).Wait(t.Context()))
		},
		"a frame of a place that there is not": func(t *testing.T, _ *couple, w *writer) {
			b := w.Expect(slotNumber(1, bodies), 5000)
			require.Error(t, b.Wait(t.Context()))
			b.Release()
		},
		"another hash": func(t *testing.T, _ *couple, w *writer) { w.Expect(number, 5000).Wrong() },
		"frames without bodies": func(t *testing.T, _ *couple, w *writer) {
			for i := range 200 {
				w.Expect(slotNumber(i, i%bodies), 5000).Release()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, c, _ := newTestWriter(t)
			c.greet(t)
			<-c.path.up
			if name == "a body twice" {
				c.write(t, 0, 5000, number)
			}
			lie(t, c, w)
			c.endsWith(t, ErrBreach)
		})
	}
}

// floodBodies writes until the path has ended.
func floodBodies(t *testing.T, c *couple) {
	t.Helper()
	_, address, key := c.path.queue.Lent()
	for i := range 32 {
		if c.peer.Write([]verbs.Write{{Length: 5000, To: address, Key: key, Immediate: slotNumber(i, i%bodies)}}) != nil {
			return
		}
	}
}

// TestBodyNeverComes: a frame announces a body that never arrives.
func TestBodyNeverComes(t *testing.T) {
	w, c, _ := newTestWriter(t)
	c.greet(t)
	<-c.path.up
	c.fabric.o.stall = time.Millisecond
	b := w.Expect(slotNumber(1, 1), 5000)
	require.ErrorIs(t, b.Wait(context.Background()), ErrStalled)
	require.ErrorIs(t, b.Read(make([]byte, 5000)), ErrStalled)
	b.Release()
	c.endsWith(t, ErrStalled)
}

var (
	_ tcp.Body  = (*body)(nil)
	_ tcp.Place = (*place)(nil)
)
