package framebench

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"io"
	"math/big"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// conn is a connection to a server that answers calls with as many bytes as they ask for.
type conn interface {
	// call fills into. received counts the bytes as they come. When ctx ends, the peer is told that
	// the rest is not wanted, and into is not written to any more after call has returned.
	call(ctx context.Context, into []byte, received *atomic.Int64) error
	close()
}

// server is a contestant's.
type server interface {
	dial(ctx context.Context) (conn, error)
	// sent is the number of bytes that the server has handed to its sockets.
	sent() int64
	close()
}

// contestant starts a server that answers from the given bytes.
type contestant struct {
	name  string
	start func(answer []byte) (server, error)
}

// ours is the first contestant, which ratios refer to.
const ours = "tcp"

func contestants() []contestant {
	return []contestant{
		{ours, startOwn},
		{"yamux", func(answer []byte) (server, error) { return startTCP(answer, hashicorp) }},
		{"go-yamux", func(answer []byte) (server, error) { return startTCP(answer, libp2p) }},
		{"quic", startQUIC},
	}
}

// tlsConfig is TLS 1.3 as transport/tcp has it: a self-signed Ed25519 certificate on both sides,
// X25519.
func tlsConfig(protocol string) (*tls.Config, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:                  tls.VersionTLS13,
		NextProtos:                  []string{protocol},
		Certificates:                []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		ClientAuth:                  tls.RequireAnyClientCert,
		CurvePreferences:            []tls.CurveID{tls.X25519},
		SessionTicketsDisabled:      true,
		DynamicRecordSizingDisabled: true,
		InsecureSkipVerify:          true, //nolint:gosec // both sides are in this process
	}, nil
}

// stream carries one call.
type stream interface {
	io.ReadWriteCloser
	// abort tells the other side that no more bytes are wanted.
	abort()
}

// session makes streams over a connection.
type session interface {
	open(ctx context.Context) (stream, error)
	accept(ctx context.Context) (stream, error)
	close()
}

// request and the head of an answer are the length of the answer.
const headBytes = 8

// streamConn makes a call of each stream.
type streamConn struct{ session }

func (c streamConn) call(ctx context.Context, into []byte, received *atomic.Int64) error {
	s, err := c.open(ctx)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, s.abort)
	err = fetch(s, into, received)
	if !stop() {
		return ctx.Err()
	}
	if err != nil {
		s.abort()
		return err
	}
	return s.Close()
}

// fetchBytes is the most that is read at once, as large as a piece of transport/tcp.
const fetchBytes = 64 << 10

func fetch(s stream, into []byte, received *atomic.Int64) error {
	var head [headBytes]byte
	binary.BigEndian.PutUint64(head[:], uint64(len(into)))
	if _, err := s.Write(head[:]); err != nil {
		return err
	}
	if _, err := io.ReadFull(s, head[:]); err != nil {
		return err
	}
	if n := binary.BigEndian.Uint64(head[:]); n != uint64(len(into)) {
		return fmt.Errorf("an answer of %d bytes, want %d", n, len(into))
	}
	for got := 0; got < len(into); {
		n, err := s.Read(into[got:min(len(into), got+fetchBytes)])
		got += n
		received.Add(int64(n))
		if err != nil && got < len(into) {
			return err
		}
	}
	return nil
}

// serveSession answers every stream until the session ends.
func serveSession(ctx context.Context, c session, answer []byte) {
	var streams sync.WaitGroup
	defer streams.Wait()
	defer c.close()
	for {
		s, err := c.accept(ctx)
		if err != nil {
			return
		}
		streams.Go(func() {
			if respond(s, answer) != nil {
				s.abort()
			}
		})
	}
}

// watcher is a stream whose Write does not end by itself when the other side wants no more bytes.
type watcher interface{ watch() }

func respond(s stream, answer []byte) error {
	var head [headBytes]byte
	if _, err := io.ReadFull(s, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint64(head[:])
	if n > uint64(len(answer)) {
		return fmt.Errorf("a call for %d bytes, there are %d", n, len(answer))
	}
	if w, is := s.(watcher); is {
		go w.watch()
	}
	if _, err := s.Write(head[:]); err != nil {
		return err
	}
	if _, err := s.Write(answer[:n]); err != nil {
		return err
	}
	return s.Close()
}

// counted counts the bytes that are written to a socket.
type counted struct {
	net.Conn
	sent *atomic.Int64
}

func (c counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.sent.Add(int64(n))
	return n, err
}
