package tcp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/starling-kv/starling/transport"
)

// allowed reports whether reading may end with this error.
func allowed(err error) bool {
	return errors.Is(err, transport.ErrProtocol) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

func FuzzHello(f *testing.F) {
	f.Add(helloHere)
	f.Add(hello{status: helloBusy, window: 3}.encode())
	f.Add([]byte("starling\x00\x02\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		h, err := readHello(r)
		if err != nil {
			require.True(t, allowed(err), err)
			return
		}
		require.LessOrEqual(t, len(h.chainID), MaxChainID)
		if h.version == version {
			require.Equal(t, b[:len(b)-r.Len()], h.encode())
		}
	})
}

// FuzzServer lets a server read arbitrary frames, and answers every request in them.
func FuzzServer(f *testing.F) {
	f.Add(requestFrame(1, "body"))
	f.Add(append(requestFrame(1, "body"), appendHeader(nil, frameCancel, 1, 0)...))
	f.Add(append(appendHeader(nil, framePing, 0, 0), requestFrame(1<<63, string(make([]byte, 5000)))...))
	f.Add(appendHeader(nil, frameRequest, 1, 1<<20))
	f.Add(append(lentFrame(1, 2, 3, "body"), appendHeader(nil, frameLost, 0, 0)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := Options{Key: keyOf(1), Handler: echo, Sides: &testSides{refuse: true}, bounds: bounds{maxCalls: 4, maxBodies: 10_000}}.withDefaults()
		require.NoError(t, err)
		s := prepare(o)
		s.ctx = context.Background()
		n := newSession(s, nil, &wire{Conn: &net.TCPConn{}}, newGuest("host"), hello{chainID: chain}, transport.Request{})
		br := bufio.NewReaderSize(bytes.NewReader(b), 64)
		for err == nil {
			err = n.readFrame(br)
		}
		require.True(t, allowed(err), err)
		n.wg.Wait()
		for p, ok := n.queue.next(); ok; p, ok = n.queue.next() {
			out := append(append([]byte(nil), p.head...), p.bytes...)
			h, err := readHeader(bufio.NewReader(bytes.NewReader(out)))
			require.NoError(t, err)
			require.Equal(t, len(out)-frameHeader, h.n)
		}
		require.LessOrEqual(t, len(n.queue.mu.open), 1, "all are settled except one that was cut short")
		n.queue.close()
		require.Zero(t, s.unsent.held())
		require.Zero(t, s.bodies.held())
	})
}

// FuzzClient lets a client with five calls under way, one of them canceled and one with a slot,
// read arbitrary frames.
func FuzzClient(f *testing.F) {
	f.Add(start(1, 10, 10))
	f.Add(append(start(1, 10, 5), more(1, 5)...))
	f.Add(append(fail(2, codeGone), start(3, 1<<40, 100)...))
	f.Add(append(fail(4, codeCancelled), start(3, 1<<40, 100)...))
	f.Add(append(appendHeader(nil, framePong, 0, 0), more(9, 5)...))
	f.Add(append(written(5, leastLent), appendHeader(nil, frameLost, 0, 0)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := &Conn{side: &testLender{lost: make(chan struct{})}, slots: make(chan struct{}, 5), wake: make(chan struct{}, 1), done: make(chan struct{}), idle: time.Hour}
		c.lost = rate.NewLimiter(idleFrames, idleFrames)
		c.mu.answers = make(map[uint64]*answer)
		calls := []transport.Call{{Into: make([]byte, 10)}, {Max: 1 << 20}, {}, {Into: make([]byte, 10)}, {Into: make([]byte, leastLent)}}
		var answers []*answer
		for _, call := range calls {
			c.slots <- struct{}{}
			a := newAnswer(call)
			_, err := c.ask(call, a)
			require.NoError(t, err)
			answers = append(answers, a)
		}
		require.True(t, answers[3].leave())
		br := bufio.NewReaderSize(bytes.NewReader(b), 64)
		var err error
		for err == nil {
			err = c.readFrame(br)
		}
		require.True(t, allowed(err), err)
		require.Equal(t, len(c.slots), len(c.mu.answers))
		for i, a := range answers {
			select {
			case <-a.done:
				got, err := a.result()
				if err == nil {
					require.LessOrEqual(t, len(got), max(len(calls[i].Into), calls[i].Max))
				}
			default:
			}
			require.LessOrEqual(t, cap(a.mu.into), max(10, 2*len(b)+16<<10))
		}
		require.Equal(t, make([]byte, 10), calls[3].Into)
	})
}
