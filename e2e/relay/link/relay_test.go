package link

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/bubble"
)

// conn is one end of a connection in memory, without buffers, whose sides can be closed separately.
type conn struct {
	net.Conn // nil: no other method is called
	r        *io.PipeReader
	w        *io.PipeWriter
}

func connect() (a, b *conn) {
	ar, bw := io.Pipe()
	br, aw := io.Pipe()
	return &conn{r: ar, w: aw}, &conn{r: br, w: bw}
}

func (c *conn) Read(p []byte) (int, error)  { return c.r.Read(p) }
func (c *conn) Write(p []byte) (int, error) { return c.w.Write(p) }
func (c *conn) CloseWrite() error           { return c.w.Close() }
func (c *conn) Close() error                { return errors.Join(c.r.Close(), c.w.Close()) }
func (c *conn) reset() {
	_ = c.w.CloseWithError(errors.New("connection reset by peer"))
	_ = c.r.Close()
}

// listener accepts the test's connections until it is closed.
type listener struct {
	net.Listener
	dialled chan net.Conn
	closed  chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.dialled:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error { close(l.closed); return nil }

// bench is a relay between nodes a and b in a synctest bubble.
type bench struct {
	*testing.T
	relay    *Relay
	listener *listener
	accepted chan net.Conn // by b
	start    time.Time
}

// inBubble runs a test on a relay between a and b, with the virtual time of a synctest bubble.
func inBubble(t *testing.T, test func(b *bench)) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{T: t, accepted: make(chan net.Conn), start: time.Now()}
		b.listener = &listener{dialled: make(chan net.Conn), closed: make(chan struct{})}
		link := Link{From: "a", To: "b", Target: "b:1"}
		b.relay = newRelay(func(ctx context.Context, address string) (net.Conn, error) {
			require.Equal(t, "b:1", address)
			near, far := connect()
			select {
			case b.accepted <- far:
				return near, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}, []Link{link})
		b.relay.serve(b.listener, link)
		defer b.relay.Close() // a leaked goroutine would fail the test
		test(b)
	})
}

// dial opens a connection from a that the relay does not hold back, and returns both ends.
func (b *bench) dial() (atA, atB net.Conn) {
	atA = b.dialOnly()
	return atA, <-b.accepted
}

func (b *bench) dialOnly() net.Conn {
	near, far := connect()
	b.listener.dialled <- far
	return near
}

func (b *bench) set(from, to string, treatment Treatment) {
	b.Helper()
	require.NoError(b, b.relay.Set(Setting{from, to, treatment}))
}

func (b *bench) read(from net.Conn, n int) string {
	b.Helper()
	data := make([]byte, n)
	_, err := io.ReadFull(from, data)
	require.NoError(b, err)
	return string(data)
}

func (b *bench) write(to net.Conn, data string) {
	b.Helper()
	_, err := io.WriteString(to, data)
	require.NoError(b, err)
}

// at asserts the time that has passed since the beginning.
func (b *bench) at(want time.Duration) {
	b.Helper()
	require.Equal(b, want, time.Since(b.start))
}

func TestBytesPass(t *testing.T) {
	inBubble(t, func(b *bench) {
		atA, atB := b.dial()
		b.write(atA, "question")
		require.Equal(b, "question", b.read(atB, 8))
		b.write(atB, "answer")
		require.Equal(b, "answer", b.read(atA, 6))
		b.at(0)

		require.NoError(b, atA.(*conn).CloseWrite())
		_, err := atB.Read(make([]byte, 1))
		require.Equal(b, io.EOF, err)
		b.write(atB, "and more") // its own side is still open
		require.Equal(b, "and more", b.read(atA, 8))
		require.NoError(b, atB.(*conn).CloseWrite())
		_, err = atA.Read(make([]byte, 1))
		require.Equal(b, io.EOF, err)
		synctest.Wait()
		require.Empty(b, b.relay.conns)
	})
}

func TestDelay(t *testing.T) {
	inBubble(t, func(b *bench) {
		const delay = 100 * time.Millisecond
		b.set("a", "b", Treatment{Delay: delay})
		began := make(chan struct{})
		go func() {
			atA := b.dialOnly()
			b.write(atA, "1")
			bubble.Sleep(10 * time.Millisecond)
			b.write(atA, "2")
			bubble.Sleep(10 * time.Millisecond)
			_ = atA.(*conn).CloseWrite()
			require.Equal(b, "back", b.read(atA, 4))
			b.at(delay + 30*time.Millisecond) // this direction has no delay
			close(began)
		}()
		atB := <-b.accepted
		b.at(delay)
		require.Equal(b, "1", b.read(atB, 1))
		b.at(delay)
		require.Equal(b, "2", b.read(atB, 1))
		b.at(delay + 10*time.Millisecond) // the delays of both bytes overlap
		_, err := atB.Read(make([]byte, 1))
		require.Equal(b, io.EOF, err)
		b.at(delay + 20*time.Millisecond)
		bubble.Sleep(10 * time.Millisecond)
		b.write(atB, "back")
		<-began
	})
}

// If a delay is shortened, the new delay applies to bytes in flight too, which stay in order.
func TestDelayChanges(t *testing.T) {
	inBubble(t, func(b *bench) {
		atA, atB := b.dial()
		b.set("a", "b", Treatment{Delay: time.Hour})
		b.write(atA, "1")
		bubble.Sleep(time.Second)
		b.set("a", "b", Treatment{Delay: 2 * time.Second})
		b.write(atA, "2")
		require.Equal(b, "1", b.read(atB, 1))
		b.at(2 * time.Second)
		require.Equal(b, "2", b.read(atB, 1))
		b.at(3 * time.Second)
	})
}

func TestBandwidth(t *testing.T) {
	inBubble(t, func(b *bench) {
		firstA, firstB := b.dial()
		secondA, secondB := b.dial()
		b.set("a", "b", Treatment{Bandwidth: 1000})
		text := strings.Repeat("x", 5000)
		go b.write(firstA, text)
		go b.write(secondA, text)
		done := make(chan struct{})
		go func() {
			require.Equal(b, text, b.read(secondB, len(text)))
			close(done)
		}()
		require.Equal(b, text, b.read(firstB, len(text)))
		<-done
		require.InDelta(b, 10, time.Since(b.start).Seconds(), 0.001) // both connections together
		b.write(firstB, text)
		require.Equal(b, text, b.read(firstA, len(text)))
		require.InDelta(b, 10, time.Since(b.start).Seconds(), 0.001) // this direction has no limit
		b.set("a", "b", Treatment{})
		b.write(firstA, text)
		require.Equal(b, text, b.read(firstB, len(text)))
		require.InDelta(b, 10, time.Since(b.start).Seconds(), 0.001)
	})
}

func TestCut(t *testing.T) {
	for name, cut := range map[string][2]string{"there": {"a", "b"}, "back": {"b", "a"}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bench) {
				atA, atB := b.dial()
				b.set(cut[0], cut[1], Treatment{Cut: true})
				from, to := atA, atB
				if name == "back" {
					from, to = atB, atA
				}
				b.write(from, "one")
				b.write(from, "two")
				got := make(chan string)
				go func() { got <- b.read(to, 6) }()
				late := b.dialOnly()
				b.write(late, "hello")
				bubble.Sleep(time.Hour)
				synctest.Wait()
				select {
				case <-got:
					b.Fatal("bytes pass a cut")
				case <-b.accepted:
					b.Fatal("a connection is made over a cut")
				default:
				}
				b.write(to, "against it") // the other direction of an existing connection works
				require.Equal(b, "against it", b.read(from, 10))

				b.set(cut[0], cut[1], Treatment{})
				require.Equal(b, "onetwo", <-got)
				require.Equal(b, "hello", b.read(<-b.accepted, 5))
				b.at(time.Hour)
			})
		})
	}
}

func TestADialerThatGivesUp(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.set("a", "b", Treatment{Cut: true})
		atA := b.dialOnly()
		b.write(atA, "hello")
		bubble.Sleep(20 * time.Second)
		require.NoError(b, atA.Close())
		synctest.Wait()
		require.Empty(b, b.relay.conns)
		b.set("a", "b", Treatment{}) // the relay does not dial: that would hang
	})
}

// A sender cannot fill the relay's memory: it has to wait.
func TestBackPressure(t *testing.T) {
	inBubble(t, func(b *bench) {
		atA, atB := b.dial()
		b.set("a", "b", Treatment{Cut: true})
		var sent int
		written := make(chan struct{})
		text := strings.Repeat("0123456789abcdef", 1<<16)
		go func() {
			for sent < len(text) {
				n, err := io.WriteString(atA, text[sent:sent+1024])
				require.NoError(b, err)
				sent += n
			}
			close(written)
		}()
		bubble.Sleep(time.Minute)
		synctest.Wait()
		require.InDelta(b, maxQueued, sent, maxRead)
		b.set("a", "b", Treatment{})
		require.Equal(b, text, b.read(atB, len(text)))
		<-written
	})
}

// The end of a connection is delayed like its bytes.
func TestEnds(t *testing.T) {
	const delay = time.Second
	inBubble(t, func(b *bench) {
		atA, atB := b.dial()
		b.set("a", "b", Treatment{Delay: delay})
		b.write(atA, "last words")
		atA.(*conn).reset()
		require.Equal(b, "last words", b.read(atB, 10))
		_, err := atB.Read(make([]byte, 1))
		require.Error(b, err)
		b.at(delay)
	})
	inBubble(t, func(b *bench) { // a side that sends to a closed one gets an error
		atA, atB := b.dial()
		b.set("b", "a", Treatment{Delay: delay})
		atB.(*conn).reset()
		b.write(atA, "anybody?")
		_, err := atA.Read(make([]byte, 1))
		require.Error(b, err)
		b.at(delay)
	})
}

func TestNobodyAtTheTarget(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.relay.dial = func(context.Context, string) (net.Conn, error) { return nil, errors.New("connection refused") }
		_, err := b.dialOnly().Read(make([]byte, 1))
		require.Error(b, err)
	})
}

func TestCloseEndsWhatHangs(t *testing.T) {
	inBubble(t, func(b *bench) {
		atA, atB := b.dial()
		b.set("a", "b", Treatment{Cut: true})
		b.write(atA, "lost")
		held := b.dialOnly()
		synctest.Wait()
		b.relay.Close()
		for _, c := range []net.Conn{atA, atB, held} {
			_, err := c.Read(make([]byte, 1))
			require.Error(b, err)
		}
		late := &listener{dialled: make(chan net.Conn), closed: make(chan struct{})}
		b.relay.serve(late, Link{From: "a", To: "b"})
		_, err := late.Accept()
		require.ErrorIs(b, err, net.ErrClosed)
	})
}

// The configuration file and the control endpoint, over real sockets.
func TestControl(t *testing.T) {
	target, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer target.Close()
	go func() {
		for {
			c, err := target.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	path := filepath.Join(t.TempDir(), "relay.json")
	links := []Link{{From: "a", To: "b", Listen: "127.0.0.1:0", Target: target.Addr().String()}}
	require.NoError(t, Config{Control: "127.0.0.1:1", Links: links}.Write(path))
	config, err := ReadConfig(path)
	require.NoError(t, err)
	require.Equal(t, Config{Control: "127.0.0.1:1", Links: links}, config)

	relay, err := New(config)
	require.NoError(t, err)
	defer relay.Close()
	server := httptest.NewServer(relay.Handler())
	defer server.Close()
	control := Control{server.URL}
	require.NoError(t, control.Healthy(t.Context()))
	require.NoError(t, control.Set(t.Context(), Setting{"a", "b", Treatment{Delay: time.Millisecond}}, Setting{"b", "a", Treatment{Bandwidth: 1 << 30}}))
	require.Equal(t, Treatment{Delay: time.Millisecond}, relay.ways[pair{"a", "b"}].Load().Treatment)
	require.Equal(t, Treatment{Bandwidth: 1 << 30}, relay.ways[pair{"b", "a"}].Load().Treatment)

	c, err := net.Dial("tcp", relay.listeners[0].Addr().String())
	require.NoError(t, err)
	defer c.Close()
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	go func() {
		_, _ = c.Write(sent)
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(c)
	require.NoError(t, err)
	require.True(t, bytes.Equal(sent, got))

	require.ErrorContains(t, control.Set(t.Context(), Setting{"a", "c", Treatment{}}), `no link between "a" and "c"`)
	require.ErrorContains(t, control.Set(t.Context(), Setting{"a", "b", Treatment{Delay: -1}}), "0 or more")
	require.Equal(t, Treatment{Delay: time.Millisecond}, relay.ways[pair{"a", "b"}].Load().Treatment)
	_, err = New(Config{Links: []Link{{From: "a", To: "b", Listen: relay.listeners[0].Addr().String()}}})
	require.ErrorContains(t, err, "link from a to b")
}

// A link that any node may dial treats each of them differently.
func TestAnyDialer(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("NOT RUN: it reads /proc")
	}
	target, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer target.Close()
	homes := map[string]string{"me": os.Args[0], "other": "/no/such/home"}
	relay, err := New(Config{Links: []Link{{To: "b", Listen: "127.0.0.1:0", Target: target.Addr().String()}}, Homes: homes})
	require.NoError(t, err)
	defer relay.Close()
	c, err := net.Dial("tcp", relay.listeners[0].Addr().String())
	require.NoError(t, err)
	defer c.Close()
	far, err := target.Accept() // the relay has found the dialer, or has given up
	require.NoError(t, err)
	defer far.Close()
	require.Error(t, relay.Set(Setting{"stranger", "b", Treatment{}}))
	require.NoError(t, relay.Set(Setting{"me", "b", Treatment{Cut: true}}))
	_, err = c.Write([]byte("x"))
	require.NoError(t, err)
	one := make([]byte, 1)
	require.NoError(t, far.SetReadDeadline(time.Now().Add(300*time.Millisecond)))
	_, err = far.Read(one)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, relay.Set(Setting{"me", "b", Treatment{}}))
	require.NoError(t, far.SetReadDeadline(time.Now().Add(time.Minute)))
	_, err = far.Read(one)
	require.NoError(t, err)

	require.Equal(t, "me", dialerOf(&reversed{c}, homes))
	require.Empty(t, dialerOf(&reversed{c}, map[string]string{"other": "/no/such/home"}))
}

// reversed is a connection as its other end sees it.
type reversed struct{ net.Conn }

func (r *reversed) LocalAddr() net.Addr  { return r.Conn.RemoteAddr() }
func (r *reversed) RemoteAddr() net.Addr { return r.Conn.LocalAddr() }
