package framebench

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"
	goyamux "github.com/libp2p/go-yamux/v5"
)

// tcpServer multiplexes streams over TLS over TCP.
type tcpServer struct {
	listener net.Listener
	tls      *tls.Config
	wrap     func(c net.Conn, isClient bool) (session, error)
	bytes    atomic.Int64
	stop     context.CancelFunc
	wg       sync.WaitGroup
}

func startTCP(answer []byte, wrap func(net.Conn, bool) (session, error)) (server, error) {
	config, err := tlsConfig("yamux")
	if err != nil {
		return nil, err
	}
	var listen net.ListenConfig
	ctx, stop := context.WithCancel(context.Background())
	l, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		stop()
		return nil, err
	}
	s := &tcpServer{listener: l, tls: config, wrap: wrap, stop: stop}
	s.wg.Go(func() {
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			s.wg.Go(func() { s.serve(ctx, raw, answer) })
		}
	})
	return s, nil
}

func (s *tcpServer) serve(ctx context.Context, raw net.Conn, answer []byte) {
	defer raw.Close()
	defer context.AfterFunc(ctx, func() { raw.Close() })()
	c, err := s.wrap(tls.Server(counted{raw, &s.bytes}, s.tls), false)
	if err != nil {
		return // the dialer meets the closed connection
	}
	serveSession(ctx, c, answer)
}

func (s *tcpServer) sent() int64 { return s.bytes.Load() }

func (s *tcpServer) close() {
	s.stop()
	s.listener.Close()
	s.wg.Wait()
}

func (s *tcpServer) dial(ctx context.Context) (conn, error) {
	d := tls.Dialer{Config: s.tls}
	raw, err := d.DialContext(ctx, "tcp", s.listener.Addr().String())
	if err != nil {
		return nil, err
	}
	c, err := s.wrap(raw, true)
	if err != nil {
		raw.Close()
		return nil, err
	}
	return streamConn{c}, nil
}

// hashicorp's session. A stream's window is 256 KiB by default, as everybody who has not measured
// has it.
func hashicorp(raw net.Conn, isClient bool) (session, error) {
	config := yamux.DefaultConfig()
	config.LogOutput = io.Discard
	wrap := yamux.Server
	if isClient {
		wrap = yamux.Client
	}
	s, err := wrap(raw, config)
	return hashicorpSession{s}, err
}

type hashicorpSession struct{ *yamux.Session }

func (s hashicorpSession) open(context.Context) (stream, error) {
	st, err := s.OpenStream()
	return hashicorpStream{st}, err
}

func (s hashicorpSession) accept(ctx context.Context) (stream, error) {
	st, err := s.AcceptStreamWithContext(ctx)
	return hashicorpStream{st}, err
}

func (s hashicorpSession) close() { _ = s.Close() } // its result counts no more

type hashicorpStream struct{ *yamux.Stream }

// abort ends the own side of the stream, and what is waiting in a Read: there is no message that
// says more. The server takes it for a cancel (watch).
func (s hashicorpStream) abort() {
	_ = s.SetReadDeadline(time.Unix(1, 0)) // a stream that is over has no use for it
	_ = s.Close()
}

// watch ends the writing of an answer when the caller has ended its side.
func (s hashicorpStream) watch() {
	var b [1]byte
	if _, err := s.Read(b[:]); err != nil {
		_ = s.SetWriteDeadline(time.Unix(1, 0)) // a stream that is over has no use for it
	}
}

// libp2p's fork. A stream's window grows to 16 MiB as the round trip demands; a reset is a message.
func libp2p(raw net.Conn, isClient bool) (session, error) {
	config := goyamux.DefaultConfig()
	config.LogOutput = io.Discard
	wrap := goyamux.Server
	if isClient {
		wrap = goyamux.Client
	}
	s, err := wrap(raw, config, nil)
	return libp2pSession{s}, err
}

type libp2pSession struct{ *goyamux.Session }

func (s libp2pSession) open(ctx context.Context) (stream, error) {
	st, err := s.OpenStream(ctx)
	return libp2pStream{st}, err
}

func (s libp2pSession) accept(context.Context) (stream, error) {
	st, err := s.AcceptStream()
	return libp2pStream{st}, err
}

func (s libp2pSession) close() { _ = s.Close() } // its result counts no more

type libp2pStream struct{ *goyamux.Stream }

func (s libp2pStream) abort() { _ = s.Reset() } // a stream that is over needs none
