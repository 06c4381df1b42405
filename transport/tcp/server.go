package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/transport"
)

// Server answers requests that arrive on a listening socket.
type Server struct {
	o         Options
	listener  net.Listener
	tls       *tls.Config
	admission *admission
	workers   *turns                      // of handlers ...
	lanes     map[transport.Method]*turns // ... except those of some methods
	sending   *turns                      // turns of pieces under the cap of rate
	rate      *rate.Limiter               // nil: no cap
	unsent    budget                      // bytes of answers being made or waiting
	bodies    budget                      // bytes of long request bodies

	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// Listen serves on an address, host:port, until Close.
func Listen(addr string, o Options) (*Server, error) {
	var config net.ListenConfig
	l, err := config.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, err
	}
	s, err := Serve(l, o)
	if err != nil {
		l.Close()
	}
	return s, err
}

// Serve serves on a listener, which it takes over, until Close.
func Serve(l net.Listener, o Options) (*Server, error) {
	o, err := o.withDefaults()
	switch {
	case err != nil:
		return nil, err
	case o.ChainID == "" || o.Handler == nil:
		return nil, errors.New("a server needs a chain id and a handler")
	}
	cfg, err := config(o.Key, func(transport.ID) error { return nil })
	if err != nil {
		return nil, err
	}
	cfg.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		hello.Conn.(*wire).heard() //nolint:errcheck // greet passes a wire to crypto/tls
		return nil, nil
	}
	s := prepare(o)
	s.listener, s.tls = l, cfg
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.wg.Go(s.accept)
	return s, nil
}

// prepare returns a server without a listener. The options must have their defaults.
func prepare(o Options) *Server {
	s := &Server{
		o: o, workers: newTurns(o.Workers, leastWork), lanes: make(map[transport.Method]*turns), sending: newTurns(1, 0),
		rate: newRate(o.Rate), unsent: budget{limit: o.maxUnsent}, bodies: budget{limit: o.maxBodies},
	}
	for _, lane := range o.Lanes {
		workers := newTurns(lane.Workers, leastWork)
		for _, method := range lane.Methods {
			s.lanes[method] = workers
		}
	}
	s.admission = newAdmission(&s.o)
	return s
}

// Used returns the bytes of MaxUnsent and MaxBodies that are in use. A nil Server uses none.
func (s *Server) Used() int64 {
	if s == nil {
		return 0
	}
	return s.unsent.held() + s.bodies.held()
}

// Addr returns the listening address.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Close ends all connections. After it returns, no handler is running.
func (s *Server) Close() error {
	s.stop()
	err := s.listener.Close()
	s.wg.Wait()
	return err
}

func (s *Server) accept() {
	for {
		c, err := s.listener.Accept()
		switch {
		case s.ctx.Err() != nil:
			if err == nil {
				c.Close()
			}
			return
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // such as too many open files; other connections will close
			s.refused("", err)
			_ = sleep.For(s.ctx, 50*time.Millisecond)
			continue
		}
		from := originOf(c.RemoteAddr())
		k, err := s.admission.knock(from, time.Now(), func() { abort(c) })
		if err != nil {
			s.refused(from.name, err)
			abort(c)
			continue
		}
		s.wg.Go(func() { s.serve(c, k) })
	}
}

// abort closes a connection so that this host keeps no state of it, not even in the kernel.
func abort(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		t.SetLinger(0) //nolint:errcheck // Close closes it in any case
	}
	c.Close()
}

func (s *Server) refused(host string, why error) {
	if s.o.Hooks.Refused != nil {
		s.o.Hooks.Refused(host, why)
	}
}

// serve handles a connection from its first byte to its last.
func (s *Server) serve(raw net.Conn, k *knocker) {
	stop := context.AfterFunc(s.ctx, func() { raw.Close() })
	defer stop()
	defer raw.Close()
	host := k.from.name
	n, err := s.greet(raw, k)
	s.admission.settled(k)
	if err != nil {
		if k.ousted.Load() {
			err = ErrTooManyPending
		}
		s.refused(host, err)
		abort(raw)
		return
	}
	defer s.admission.leave(n.guest)
	if s.o.Hooks.Opened != nil {
		s.o.Hooks.Opened(n.proto.Peer, host)
	}
	err = n.run()
	if s.o.Hooks.Closed != nil {
		s.o.Hooks.Closed(n.proto.Peer, host, err)
	}
}

// greet authenticates the peer and exchanges the hellos, within the limits of time and bytes.
func (s *Server) greet(raw net.Conn, k *knocker) (*session, error) {
	began := time.Now()
	if err := raw.SetDeadline(began.Add(min(s.o.firstTimeout, s.o.handshakeTimeout))); err != nil {
		return nil, err
	}
	w := newWire(raw, &s.o, smallBuffer)
	w.heard = func() {
		k.hear(time.Now())
		raw.SetDeadline(began.Add(s.o.handshakeTimeout)) //nolint:errcheck // the next read returns the error
	}
	t := tls.Server(w, s.tls)
	if err := t.HandshakeContext(s.ctx); err != nil {
		return nil, err
	}
	id, err := peerID(t.ConnectionState())
	if err != nil {
		return nil, err
	}
	theirs, err := readHello(t)
	if err != nil {
		return nil, err
	}
	ours := hello{window: uint16(s.o.maxCalls), chainID: s.o.ChainID}
	var g *guest
	switch {
	case theirs.version != version:
		ours.status, err = helloWrongVersion, fmt.Errorf("%w: %d", transport.ErrWrongVersion, theirs.version)
	case theirs.status != helloOK:
		return nil, fmt.Errorf("%w: a dialer's hello has status %d", transport.ErrProtocol, theirs.status)
	case theirs.chainID != "" && theirs.chainID != s.o.ChainID:
		ours.status, err = helloWrongChain, fmt.Errorf("%w: %q", transport.ErrWrongChain, theirs.chainID)
	default:
		if g, err = s.admission.pass(k, id, time.Now(), func() { raw.Close() }); err != nil {
			ours.status = helloBusy
		}
	}
	if _, werr := t.Write(ours.encode()); werr == nil && err != nil {
		drain(t) // otherwise the refusal might not arrive
	} else if err == nil && werr != nil {
		s.admission.leave(g)
		err = werr
	}
	if err != nil {
		return nil, err
	}
	if err := raw.SetDeadline(time.Time{}); err != nil {
		s.admission.leave(g)
		return nil, err
	}
	w.greeted(largeBuffer)
	return newSession(s, t, w, g, theirs, transport.Request{Peer: id, Host: k.from.host()}), nil
}

// drain waits for the peer to close. Closing a socket with unread bytes would discard the bytes
// sent last (RFC 1122, section 4.2.2.13). The handshake's limits of time and bytes apply.
func drain(t *tls.Conn) {
	if t.CloseWrite() != nil {
		return
	}
	var b [256]byte
	for {
		if _, err := t.Read(b[:]); err != nil {
			return
		}
	}
}
