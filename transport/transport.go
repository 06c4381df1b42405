// Package transport moves requests and their answers between nodes that have proved who they are.
//
//	Dialer ──Dial──► Conn ──Call(method, body, buffer)──► … network … ──► Mux ──► Handler
//	                  ▲                                                             │
//	                  └──────────── the answer lands in the caller's buffer ◄───────┘
//
// A transport does not judge what an answer says: whoever asks verifies it. The length of a chunk
// is known before it is requested, so the requester lends the buffer that the answer lands in, as
// one-sided RDMA needs too. transporttest.Run checks that an implementation keeps this contract.
package transport

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
)

// ID names a node: the first 20 bytes of the SHA-256 of its ed25519 key, in lower-case hex, as
// CometBFT's p2p.ID.
type ID string

// Validate returns an error if id is not 40 lower-case hex digits.
func (id ID) Validate() error {
	if raw, err := hex.DecodeString(string(id)); err != nil || len(raw) != 20 || strings.ToLower(string(id)) != string(id) {
		return fmt.Errorf("%q is no node id: it is 40 lower-case hex digits", string(id))
	}
	return nil
}

// Address is where a node listens. ID may be empty: then any node that answers there will do.
type Address struct {
	ID       ID
	HostPort string
}

// String returns id@host:port, or host:port without an ID.
func (a Address) String() string {
	if a.ID == "" {
		return a.HostPort
	}
	return string(a.ID) + "@" + a.HostPort
}

// ParseAddress reads id@host:port or host:port.
func ParseAddress(s string) (Address, error) {
	var a Address
	id, hostPort, has := strings.Cut(s, "@")
	if !has {
		id, hostPort = "", s
	} else if err := ID(id).Validate(); err != nil {
		return a, fmt.Errorf("address %q: %w", s, err)
	}
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil || host == "" || port == "" {
		return a, fmt.Errorf("address %q: it must be id@host:port or host:port", s)
	}
	return Address{ID(id), hostPort}, nil
}

// Method is the kind of a request. Its number stands where its messages are defined;
// docs/spec/transport.md#methods lists all.
type Method uint8

// MaxBody is the limit of a request's body, in bytes.
const MaxBody = 1 << 20

// Errors of Call and Dial. The first four are answers of the peer, and prove nothing about its
// honesty.
var (
	ErrGone    = errors.New("the peer does not have it")
	ErrBusy    = errors.New("the peer is busy")
	ErrRefused = errors.New("the peer refuses the request")
	ErrFailed  = errors.New("the peer failed to answer") // by an error of its own

	ErrClosed = errors.New("the connection is closed")
	// ErrTooLong: the peer has announced an answer longer than the buffer, or than Max. An honest
	// one never does so for a chunk.
	ErrTooLong = errors.New("the answer is longer than it can be")
	// ErrProtocol: the peer has sent bytes that no honest peer sends. The connection is closed.
	ErrProtocol = errors.New("the peer broke the protocol")
	// ErrWrongID: another node than the one that was dialled has answered.
	ErrWrongID = errors.New("the peer has another node id")
	// ErrWrongChain: the peer is of another chain.
	ErrWrongChain = errors.New("the peer is of another chain")
	// ErrWrongVersion: the peer speaks another version of the protocol.
	ErrWrongVersion = errors.New("the peer speaks another version of the protocol")
)

// Call is a request.
type Call struct {
	Method Method
	Body   []byte // at most MaxBody bytes; not changed during the call
	// Into is lent to the transport until Conn.Call returns: the answer lands in it, and may be
	// shorter. The caller does not touch it meanwhile. nil: the transport allocates, as bytes
	// arrive and never ahead of them, up to Max bytes.
	Into []byte
	Max  int
	// Received, if not nil, counts the bytes of the answer as they arrive. They are then in Into,
	// from its beginning, even if Call returns an error.
	Received *atomic.Int64
	// Proved asks for an answer that proves who has sent it, over a path that authenticates each
	// byte. See Unproved.
	Proved bool
}

// Conn is a connection to a node that has proved its ID. Its methods may be called concurrently;
// many calls can be under way.
type Conn interface {
	// Remote returns the peer: its ID, and the HostPort at which it was dialled.
	Remote() Address
	// ChainID returns the chain that the peer claims to be of. It is the dialer's, unless that has
	// none.
	ChainID() string
	// Call sends a request and waits for its answer: Into[:n], or what was allocated. Once it has
	// returned, for whatever reason, the transport touches neither Into nor Body. If ctx ends, the
	// peer is told that the answer is no longer needed, and ctx's error is returned; the connection
	// stays.
	Call(ctx context.Context, c Call) ([]byte, error)
	// Done is closed when the connection has ended; Err then returns why.
	Done() <-chan struct{}
	Err() error
	Close() error
}

// Unproved reports whether answers of a connection may have been sent by somebody else than the
// peer. If one is wrong, Doubt says so to the connection, and the call is made with Proved: only
// that answer is the peer's.
func Unproved(c Conn) bool {
	u, is := c.(interface{ Unproved() bool })
	return is && u.Unproved()
}

// Doubt tells a connection that an answer which came unproved was wrong. It then uses the path for
// some time no more.
func Doubt(c Conn) {
	if d, is := c.(interface{ Doubt() }); is {
		d.Doubt()
	}
}

// Dialer connects to nodes.
type Dialer interface {
	// Dial connects and authenticates. The connection outlives ctx. It fails with ErrWrongID,
	// ErrWrongChain or ErrWrongVersion, with ErrBusy if the peer has no room for a connection, or
	// with an error of the network. A dialer that does not know the chain id yet leaves it out, and
	// learns it from Conn.ChainID; it is then answered only the methods that the server opens to
	// strangers.
	Dial(ctx context.Context, a Address) (Conn, error)
}

// Request is a Call as it arrived.
type Request struct {
	Peer   ID     // who asks; proved
	Host   string // the peer's address, without the port
	Method Method
	Body   []byte // owned by the handler
}

// Handler answers requests. Serve is called concurrently, as often as the server allows. The answer
// must not be modified after it was returned. An error that is ErrGone, ErrBusy or ErrRefused
// reaches the peer as such, any other as ErrFailed, without its text. ctx ends when the peer has
// disconnected or cancelled the call.
type Handler interface {
	Serve(ctx context.Context, r Request) ([]byte, error)
}

// Weigher is a Handler that knows what a request takes. A server asks it before it serves the
// request: its memory is bounded, and hosts share its work.
type Weigher interface {
	Handler
	// Weigh returns about how many bytes the answer, and what it is made of, will have. Work that
	// no such bytes stand for is measured. It returns at once, and judges nothing of the request:
	// one that will be refused weighs nothing.
	Weigh(r Request) int64
}

// Weighed returns a handler that is a Weigher.
func Weighed(h Handler, weigh func(Request) int64) Weigher { return weighed{h, weigh} }

type weighed struct {
	Handler
	weigh func(Request) int64
}

func (w weighed) Weigh(r Request) int64 { return w.weigh(r) }

// HandlerFunc is a function that is a Handler.
type HandlerFunc func(ctx context.Context, r Request) ([]byte, error)

// Serve implements Handler.
func (f HandlerFunc) Serve(ctx context.Context, r Request) ([]byte, error) { return f(ctx, r) }

// Mux calls the handler of a request's method, and refuses methods without one. It must be filled
// before it is used.
type Mux [256]Handler

// Handle sets the handler of a method. It panics if there is one already: two packages have given
// their messages the same number.
func (m *Mux) Handle(method Method, h Handler) {
	if m[method] != nil {
		panic(fmt.Sprintf("method %d has two handlers", method))
	}
	m[method] = h
}

// unweighed is what a handler that is no Weigher is taken to need, in bytes.
const unweighed = 64 << 10

// Weigh returns what a handler is taken to need for a request, in bytes.
func Weigh(h Handler, r Request) int64 {
	if w, is := h.(Weigher); is {
		return max(w.Weigh(r), 0)
	}
	return unweighed
}

// Weigh implements Weigher.
func (m *Mux) Weigh(r Request) int64 {
	if m[r.Method] == nil {
		return 0
	}
	return Weigh(m[r.Method], r)
}

// Serve implements Handler.
func (m *Mux) Serve(ctx context.Context, r Request) ([]byte, error) {
	h := m[r.Method]
	if h == nil {
		return nil, fmt.Errorf("method %d: %w", r.Method, ErrRefused)
	}
	return h.Serve(ctx, r)
}
