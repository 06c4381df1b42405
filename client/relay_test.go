package client_test

import (
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// relay forwards connections to a node. It can be killed, or stopped like a process by SIGSTOP: the
// kernel still accepts connections and bytes, and nothing answers.
type relay struct {
	to       string
	address  string
	listener net.Listener

	mu      sync.Mutex
	conns   []net.Conn
	stopped chan struct{} // open while it is stopped; otherwise nil
	killed  bool
}

func newRelay(t *testing.T, to string) *relay {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &relay{to: to, address: l.Addr().String(), listener: l}
	go r.serve()
	t.Cleanup(r.kill)
	return r
}

func (r *relay) serve() {
	for {
		in, err := r.listener.Accept()
		if err != nil {
			return
		}
		go r.pass(in)
	}
}

func (r *relay) pass(in net.Conn) {
	r.wait()
	out, err := net.Dial("tcp", r.to)
	if err != nil {
		in.Close()
		return
	}
	r.mu.Lock()
	r.conns = append(r.conns, in, out)
	killed := r.killed
	r.mu.Unlock()
	if killed {
		in.Close()
		out.Close()
	}
	go r.copy(in, out)
	r.copy(out, in)
}

func (r *relay) copy(to, from net.Conn) {
	defer to.Close()
	buffer := make([]byte, 1<<15)
	for {
		n, err := from.Read(buffer)
		r.wait()
		if _, failed := to.Write(buffer[:n]); failed != nil || err != nil {
			return
		}
	}
}

// wait waits while the relay is stopped.
func (r *relay) wait() {
	r.mu.Lock()
	stopped := r.stopped
	r.mu.Unlock()
	if stopped != nil {
		<-stopped
	}
}

func (r *relay) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = make(chan struct{})
}

func (r *relay) resume() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped != nil {
		close(r.stopped)
		r.stopped = nil
	}
}

func (r *relay) kill() {
	r.resume()
	r.listener.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.killed = true
	for _, c := range r.conns {
		c.Close()
	}
}
