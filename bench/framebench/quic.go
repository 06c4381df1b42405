package framebench

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
)

// quicServer has a stream of QUIC for each call.
type quicServer struct {
	transport *quic.Transport
	listener  *quic.Listener
	tls       *tls.Config
	bytes     atomic.Int64
	stop      context.CancelFunc
	wg        sync.WaitGroup
}

var quicConfig = &quic.Config{MaxIdleTimeout: 5 * time.Minute}

func startQUIC(answer []byte) (server, error) {
	config, err := tlsConfig("quic")
	if err != nil {
		return nil, err
	}
	udp, err := listenUDP()
	if err != nil {
		return nil, err
	}
	s := &quicServer{tls: config}
	s.transport = &quic.Transport{Conn: countedUDP{udp, &s.bytes}}
	if s.listener, err = s.transport.Listen(config, quicConfig); err != nil {
		_ = udp.Close()
		return nil, err
	}
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	s.wg.Go(func() {
		for {
			c, err := s.listener.Accept(ctx)
			if err != nil {
				return
			}
			s.wg.Go(func() { serveSession(ctx, quicSession{conn: c}, answer) })
		}
	})
	return s, nil
}

func listenUDP() (*net.UDPConn, error) {
	return net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
}

// countedUDP counts the bytes of packets. That it has all methods of a *net.UDPConn lets quic-go
// send and receive several at a time.
type countedUDP struct {
	*net.UDPConn
	sent *atomic.Int64
}

func (c countedUDP) WriteMsgUDP(b, oob []byte, addr *net.UDPAddr) (n, oobn int, err error) {
	n, oobn, err = c.UDPConn.WriteMsgUDP(b, oob, addr)
	c.sent.Add(int64(n))
	return n, oobn, err
}

func (c countedUDP) WriteTo(b []byte, addr net.Addr) (int, error) {
	n, err := c.UDPConn.WriteTo(b, addr)
	c.sent.Add(int64(n))
	return n, err
}

func (s *quicServer) sent() int64 { return s.bytes.Load() }

func (s *quicServer) close() {
	s.stop()
	_ = s.listener.Close() // its result counts no more
	_ = s.transport.Close()
	_ = s.transport.Conn.Close()
	s.wg.Wait()
}

func (s *quicServer) dial(ctx context.Context) (conn, error) {
	udp, err := listenUDP()
	if err != nil {
		return nil, err
	}
	t := &quic.Transport{Conn: udp}
	c, err := t.Dial(ctx, s.listener.Addr(), s.tls, quicConfig)
	if err != nil {
		_ = t.Close() // it was never used
		_ = udp.Close()
		return nil, err
	}
	return streamConn{quicSession{c, t}}, nil
}

type quicSession struct {
	conn      *quic.Conn
	transport *quic.Transport // of a dialer
}

func (s quicSession) open(ctx context.Context) (stream, error) {
	st, err := s.conn.OpenStreamSync(ctx)
	return quicCall{quicStream{st}}, err
}

func (s quicSession) accept(ctx context.Context) (stream, error) {
	st, err := s.conn.AcceptStream(ctx)
	return quicAnswer{quicStream{st}}, err
}

func (s quicSession) close() {
	_ = s.conn.CloseWithError(0, "") // its result counts no more
	if s.transport != nil {
		_ = s.transport.Close()
		_ = s.transport.Conn.Close()
	}
}

type quicStream struct{ *quic.Stream }

func (s quicStream) abort() {
	s.CancelRead(0)
	s.CancelWrite(0)
}

// quicCall is the caller's side of a stream. quic-go forgets a stream when both sides have read its
// end.
type quicCall struct{ quicStream }

// Write sends the request, which is all that a caller sends.
func (s quicCall) Write(b []byte) (int, error) {
	n, err := s.Stream.Write(b)
	if err == nil {
		err = s.Stream.Close()
	}
	return n, err
}

// Close reads the end of the answer.
func (s quicCall) Close() error { return readEnd(s.Stream) }

// quicAnswer is the server's side of a stream.
type quicAnswer struct{ quicStream }

// Close ends the answer, and reads the end of the request.
func (s quicAnswer) Close() error {
	if err := s.Stream.Close(); err != nil {
		return err
	}
	return readEnd(s.Stream)
}

var errMore = errors.New("more bytes than announced")

func readEnd(s *quic.Stream) error {
	var b [1]byte
	switch _, err := s.Read(b[:]); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return err
	}
	return errMore
}
