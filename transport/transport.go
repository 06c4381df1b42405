// Package transport exchanges requests and answers between nodes that have proved their identity.
//
//	Dialer ──Dial──► Conn ──Call(method, body, buffer)──► … network … ──► Mux ──► Handler
//	                  ▲                                                             │
//	                  └──────────── the answer lands in the caller's buffer ◄───────┘
//
// A transport does not interpret answers: the caller verifies them. The length of a chunk is known
// before it is requested, so the caller lends the buffer for the answer, which one-sided RDMA needs
// as well. transporttest.Run checks that an implementation fulfils this contract.
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

// ID identifies a node: the first 20 bytes of the SHA-256 of its ed25519 key, in lower-case hex,
// like CometBFT's p2p.ID.
type ID string

// Validate returns an error if id is not 40 lower-case hex digits.
func (id ID) Validate() error {
	if raw, err := hex.DecodeString(string(id)); err != nil || len(raw) != 20 || strings.ToLower(string(id)) != string(id) {
		return fmt.Errorf("%q is not a node id: want 40 lower-case hex digits", string(id))
	}
	return nil
}

// Address is where a node listens. If ID is empty, any node that answers there is accepted.
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

// Method is the kind of a request. Each package defines the numbers of its methods;
// docs/spec/transport.md#methods lists all of them.
type Method uint8

// MaxBody is the size limit of a request body, in bytes.
const MaxBody = 1 << 20

// Errors of Call and Dial. The first four are answers of the peer and do not incriminate it.
var (
	ErrGone    = errors.New("the peer does not have it")
	ErrBusy    = errors.New("the peer is busy")
	ErrRefused = errors.New("the peer refuses the request")
	ErrFailed  = errors.New("the peer failed to answer") // because of an internal error

	ErrClosed = errors.New("the connection is closed")
	// ErrTooLong: the peer announced an answer longer than the buffer, or than Max. An honest peer
	// never does so for a chunk.
	ErrTooLong = errors.New("the answer exceeds its maximum length")
	// ErrProtocol: the peer sent bytes that no honest peer sends. The connection is closed.
	ErrProtocol = errors.New("the peer broke the protocol")
	// ErrWrongID: the node at the dialled address has another ID.
	ErrWrongID = errors.New("the peer has another node id")
	// ErrWrongChain: the peer belongs to another chain.
	ErrWrongChain = errors.New("the peer belongs to another chain")
	// ErrWrongVersion: the peer uses another version of the protocol.
	ErrWrongVersion = errors.New("the peer uses another version of the protocol")
)

// Call is a request.
type Call struct {
	Method Method
	Body   []byte // at most MaxBody bytes; not changed during the call
	// Into is lent to the transport until Conn.Call returns. It receives the answer, which may be
	// shorter. The caller must not touch it meanwhile. nil: the transport allocates the answer as
	// bytes arrive, never ahead of them, up to Max bytes.
	Into []byte
	Max  int
	// Received, if not nil, counts the bytes of the answer as they arrive. They are then at the
	// start of Into, even if Call returns an error.
	Received *atomic.Int64
	// Proved requires an answer that proves its sender, over a path that authenticates each byte.
	// See Unproved.
	Proved bool
}

// Conn is a connection to a node that has proved its ID. Its methods may be called concurrently,
// and many calls can be under way.
type Conn interface {
	// Remote returns the peer: its ID, and the HostPort at which it was dialled.
	Remote() Address
	// ChainID returns the chain that the peer claims. It equals the dialer's, unless the dialer has
	// none.
	ChainID() string
	// Call sends a request and waits for its answer: Into[:n], or allocated bytes. After it has
	// returned, for whatever reason, the transport touches neither Into nor Body. If ctx ends, the
	// call is cancelled at the peer and returns ctx's error; the connection stays open.
	Call(ctx context.Context, c Call) ([]byte, error)
	// Done is closed when the connection has ended; Err then returns why.
	Done() <-chan struct{}
	Err() error
	Close() error
}

// IsViolation reports whether an error of a call proves a protocol violation of the peer. An honest
// peer never causes such an error.
func IsViolation(err error) bool { return errors.Is(err, ErrTooLong) || errors.Is(err, ErrProtocol) }

// Unproved reports whether answers of a connection may come from a sender other than the peer. If
// one is wrong, call Doubt and repeat the call with Proved: only that answer certainly comes from
// the peer.
func Unproved(c Conn) bool {
	u, is := c.(interface{ Unproved() bool })
	return is && u.Unproved()
}

// Doubt reports to a connection that an unproved answer was wrong. After several such reports the
// connection stops using the unauthenticated path for some time.
func Doubt(c Conn) {
	if d, is := c.(interface{ Doubt() }); is {
		d.Doubt()
	}
}

// Dialer connects to nodes.
type Dialer interface {
	// Dial connects and authenticates. The connection outlives ctx. It fails with ErrWrongID,
	// ErrWrongChain or ErrWrongVersion, with ErrBusy if the peer has no room for a connection, or
	// with a network error. A dialer without a chain id learns it from Conn.ChainID, and may call
	// only the methods that the server opens to such dialers.
	Dial(ctx context.Context, a Address) (Conn, error)
}

// Request is a Call as it arrives at the server.
type Request struct {
	Peer   ID     // authenticated ID of the requester
	Host   string // the peer's IPv4 address or IPv6 /64, without the port
	Method Method
	Body   []byte // owned by the handler
}

// Handler answers requests. Serve is called concurrently, as often as the server allows. The answer
// must not be modified after it was returned. An error that is ErrGone, ErrBusy or ErrRefused
// reaches the peer as such, any other error as ErrFailed, without its text. ctx ends when the peer
// disconnects or cancels the call.
type Handler interface {
	Serve(ctx context.Context, r Request) ([]byte, error)
}

// Weigher is a Handler that can estimate the cost of a request. A server asks for the estimate
// before it serves the request, because its memory is bounded and hosts share its work.
type Weigher interface {
	Handler
	// Weigh returns the approximate number of bytes of the answer and of the data that it is made
	// from. Other work is measured, not estimated. It returns at once and does not validate the
	// request: a request that will be refused weighs nothing.
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

// Mux calls the handler of a request's method, and refuses methods without a handler. It must be
// filled before it is used.
type Mux [256]Handler

// Handle sets the handler of a method. It panics if there is already one, because two packages then
// use the same number.
func (m *Mux) Handle(method Method, h Handler) {
	if m[method] != nil {
		panic(fmt.Sprintf("method %d has two handlers", method))
	}
	m[method] = h
}

// unweighed is the assumed weight of a request if the handler is not a Weigher, in bytes.
const unweighed = 64 << 10

// Weigh returns the estimated weight of a request for a handler, in bytes.
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
