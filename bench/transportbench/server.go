package transportbench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"

	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/rdma"
	"github.com/starling-kv/starling/transport/tcp"
)

// server responds on all paths. It implements child.Worker.
type server struct {
	pattern []byte
	fabric  *rdma.Fabric // nil without RDMA
	plain   net.Listener
	calls   []*tcp.Server
	wg      sync.WaitGroup
	open    struct {
		sync.Mutex
		conns map[net.Conn]struct{} // plain sockets; nil once closed
	}
}

func openServer(b begin) (_ worker, a answer, err error) {
	s := &server{pattern: pattern(b.Largest)}
	s.open.conns = make(map[net.Conn]struct{})
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	a.Servers = make(map[string]string)
	listen := net.JoinHostPort(b.Host, "0")
	if s.plain, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", listen); err != nil {
		return nil, a, err
	}
	s.wg.Go(s.accept)
	a.Servers[pathTCP] = s.plain.Addr().String()
	if slices.Contains(b.Paths, pathRDMA) {
		s.fabric = newFabric(rdma.Hooks{})
	}
	for _, path := range b.Paths {
		if path == pathTCP {
			continue
		}
		key, err := newKey()
		if err != nil {
			return nil, a, err
		}
		o := tcp.Options{Key: key, ChainID: chainID, Handler: transport.HandlerFunc(s.serve)}
		if path == pathRDMA {
			o.Sides = s.fabric
		}
		l, err := tcp.Listen(listen, o)
		if err != nil {
			return nil, a, err
		}
		s.calls = append(s.calls, l)
		a.Servers[path] = l.Addr().String()
	}
	return s, a, nil
}

// serve is the handler of calls.
func (s *server) serve(_ context.Context, r transport.Request) ([]byte, error) {
	n, err := decodeRequest(r.Body, len(s.pattern))
	if err != nil {
		return nil, err
	}
	return s.pattern[:n], nil
}

// accept serves plain sockets.
func (s *server) accept() {
	for {
		c, err := s.plain.Accept()
		if err != nil {
			return
		}
		s.open.Lock()
		if s.open.conns == nil {
			c.Close()
		} else {
			s.open.conns[c] = struct{}{}
			s.wg.Go(func() { s.answer(c) })
		}
		s.open.Unlock()
	}
}

// answer responds on a plain socket with the number of bytes that each request specifies, until the
// connection ends.
func (s *server) answer(c net.Conn) {
	defer func() {
		c.Close()
		s.open.Lock()
		defer s.open.Unlock()
		delete(s.open.conns, c)
	}()
	in := bufio.NewReader(c)
	var head [requestBytes]byte
	for {
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return
		}
		n, err := decodeRequest(head[:], len(s.pattern))
		if err != nil {
			return
		}
		if _, err := c.Write(s.pattern[:n]); err != nil {
			return
		}
	}
}

// Do implements child.Worker.
func (s *server) Do(r request, _ *bufio.Reader) (answer, error) {
	if r.Op != opUsed {
		return answer{}, fmt.Errorf("unknown request %q", r.Op)
	}
	return answer{Used: usedBy(s.fabric)}, nil
}

// Close implements child.Worker.
func (s *server) Close() error {
	var errs []error
	if s.plain != nil {
		errs = append(errs, s.plain.Close())
	}
	s.open.Lock()
	for c := range s.open.conns {
		c.Close()
	}
	s.open.conns = nil
	s.open.Unlock()
	for _, l := range s.calls {
		errs = append(errs, l.Close())
	}
	s.wg.Wait()
	if s.fabric != nil {
		if err := s.fabric.Close(); err != nil {
			errs = append(errs, fmt.Errorf("RDMA: %w", err))
		}
	}
	return errors.Join(errs...)
}
