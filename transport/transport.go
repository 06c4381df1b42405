// Package transport moves requests and their answers between nodes that have proved who they are.
//
//	Dialer ──Dial──► Conn ──Call(method, body, buffer)──► … network … ──► Mux ──► Handler
//	                  ▲                                                             │
//	                  └──────────── the answer lands in the caller's buffer ◄───────┘
//
// What an answer says is not this package's business: whoever asks verifies it. A chunk's length is known before it is asked for, so the
// requester lends the buffer that it lands in, which one-sided RDMA needs as well.
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

// ID names a node: the first 20 bytes of SHA-256 of its ed25519 key, in lower-case hex, as CometBFT's p2p.ID.
type ID string

// Validate says what is wrong with an ID.
func (id ID) Validate() error {
	if raw, err := hex.DecodeString(string(id)); err != nil || len(raw) != 20 || strings.ToLower(string(id)) != string(id) {
		return fmt.Errorf("%q is no node id: it is 40 lower-case hex digits", string(id))
	}
	return nil
}

// Address is where a node listens. ID may be empty: whoever answers there will do.
type Address struct {
	ID       ID
	HostPort string
}

// String is the form id@host:port, or host:port.
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

// Method says what a request is about.
type Method uint8

// The methods. Who implements one writes down its bodies and answers (docs/spec/transport.md).
const (
	MethodStatus          Method = 1  // which heights and snapshots a node has
	MethodCommitment      Method = 2  // what an app hash commits to
	MethodManifest        Method = 3  // the manifest of a snapshot
	MethodChunk           Method = 4  // a chunk, or a range of its bytes
	MethodSubManifest     Method = 5  // the manifest of a chunk cut smaller
	MethodLightBlock      Method = 6  // header, commit and validators of a height
	MethodConsensusParams Method = 7  // CometBFT's parameters at a height
	MethodEvidence        Method = 8  // evidence of misbehaviour, for the evidence pool
	MethodPeers           Method = 9  // addresses of further nodes
	MethodGenesis         Method = 10 // the genesis file; also for who does not know the chain id yet
	MethodHeaders         Method = 11 // headers and commits of consecutive heights, downwards
)

// MaxBody is how long a request's body may be, in bytes.
const MaxBody = 1 << 20

// Errors of a Call. Those of the first group say what the peer answered, and nothing about its honesty.
var (
	ErrGone    = errors.New("the peer does not have it")
	ErrBusy    = errors.New("the peer is busy")
	ErrRefused = errors.New("the peer refuses the request")
	ErrFailed  = errors.New("the peer failed to answer") // an error of its own

	ErrClosed = errors.New("the connection is closed")
	// ErrTooLong: the peer announced an answer longer than the buffer, or than Max. An honest one never does for a chunk.
	ErrTooLong = errors.New("the answer is longer than it can be")
	// ErrProtocol: bytes that no honest peer sends. The connection is closed.
	ErrProtocol = errors.New("the peer broke the protocol")
	// ErrWrongID: somebody else than the one that was dialled answered.
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
	// Into is lent to the transport until Conn.Call returns: the answer lands in it. Nobody else touches it meanwhile. An answer may be
	// shorter. nil: the transport allocates, as bytes arrive and never ahead of them, up to Max.
	Into []byte
	Max  int
	// Received, where it is not nil, counts the bytes of the answer as they come.
	Received *atomic.Int64
}

// Conn is a connection to a node that has proved its ID. Its methods may be called concurrently; many calls can be under way.
type Conn interface {
	// Remote is whom it leads to: ID is set, HostPort is where the node was dialled.
	Remote() Address
	// Call sends a request and waits for its answer: Into[:n], or what was allocated. When it returns, for whatever reason, the
	// transport will not touch Into again, nor Body. If ctx ends, the peer is told that no answer is wanted any more, and ctx's error is
	// returned; the connection stays.
	Call(ctx context.Context, c Call) ([]byte, error)
	// Done is closed when the connection is over, Err then says why.
	Done() <-chan struct{}
	Err() error
	Close() error
}

// Dialer connects to nodes.
type Dialer interface {
	// Dial connects and authenticates. The connection stays after ctx has ended. It fails with ErrWrongID, ErrWrongChain and the like, or with
	// ErrBusy where the peer has no room for a connection. Who does not know the chain id yet dials without one, is answered MethodStatus and
	// MethodGenesis only, and learns it from the connection, which is an interface{ ChainID() string } as well.
	Dial(ctx context.Context, a Address) (Conn, error)
}

// Request is a Call as it arrived.
type Request struct {
	Peer   ID     // who asks, proved
	Host   string // from where, without the port
	Method Method
	Body   []byte // the handler's
}

// Handler answers requests. It is called concurrently, for as many as the server allows. The answer must not be modified afterwards. An
// error that is one of ErrGone, ErrBusy or ErrRefused reaches the peer as that one, any other as ErrFailed, without its text. ctx ends when
// the peer is gone or does not want the answer any more.
type Handler interface {
	Serve(ctx context.Context, r Request) ([]byte, error)
}

// HandlerFunc is a function as a Handler.
type HandlerFunc func(ctx context.Context, r Request) ([]byte, error)

// Serve implements Handler.
func (f HandlerFunc) Serve(ctx context.Context, r Request) ([]byte, error) { return f(ctx, r) }

// Mux passes requests on by their method; unknown ones are refused. It is filled before it is used.
type Mux [256]Handler

// Handle sets the handler of a method.
func (m *Mux) Handle(method Method, h Handler) { m[method] = h }

// Serve implements Handler.
func (m *Mux) Serve(ctx context.Context, r Request) ([]byte, error) {
	h := m[r.Method]
	if h == nil {
		return nil, fmt.Errorf("method %d: %w", r.Method, ErrRefused)
	}
	return h.Serve(ctx, r)
}
