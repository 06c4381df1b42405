// Package tcp carries requests and answers between nodes over TCP and TLS 1.3. Each side proves
// possession of its node key.
//
//	caller ─ Call ─► Conn ── request, cancel ──► session ─► Handler (Workers at once, over all connections)
//	                  ▲  ▲                          │
//	         its buffer  └─ pieces ≤ 64 KiB, small ─┘        Server: accepts, counts hosts, peers and bytes
//	                        answers overtake large ones
//
// The frames are specified in docs/spec/transport.md#frames. In its hello, a server announces how
// many calls a connection may have under way, and the client holds back the rest. So a server
// always keeps reading, cancels never wait behind requests, and a peer that sends more is dropped.
package tcp

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/starling-kv/starling/transport"
)

// MaxChainID is the length limit of a chain id, in bytes, as in CometBFT.
const MaxChainID = 50

// maxWindow is the largest number of calls under way that a hello can allow.
const maxWindow = 1024

// Options configure a server or a dialer. Zero means the default, unless the comment says
// otherwise.
type Options struct {
	Key ed25519.PrivateKey // proves the identity of this node
	// ChainID is the chain of this node. Peers of other chains are refused. A dialer that does not
	// know it yet leaves it empty, learns it from Conn.ChainID, and may call OpenMethods only.
	ChainID string
	Handler transport.Handler // of a server
	// OpenMethods are the methods that a server also answers to dialers without a chain id. All
	// others are refused to them.
	OpenMethods []transport.Method

	// Lanes are methods with workers of their own. Their requests neither wait for the others nor
	// delay them.
	Lanes []Lane
	// Named reports whether the operator names a peer now: then its connections to a server are not
	// closed to make room. It must return at once, and is called concurrently. nil: none is named.
	Named func(transport.ID) bool

	// Limits of a server. A host is an IPv4 address or an IPv6 /64.

	// MaxConns: 128. If all are taken, a newcomer replaces a connection of the network with the
	// most connections, or a connection without requests.
	MaxConns        int
	MaxConnsPerHost int // 16
	// Workers is the number of handlers that run at once over all connections, except those of
	// Lanes; 8. Hosts take turns.
	Workers int
	// Rate and RatePerPeer cap the bytes of answers per second, to all hosts together and to each
	// host; 0: no cap.
	Rate, RatePerPeer int64

	Hooks Hooks

	// Sides sets up paths for answers that bypass TLS; nil: none.
	Sides Sides

	// Connect opens the connections of a dialer; nil: over TCP.
	Connect func(ctx context.Context, hostPort string) (net.Conn, error)

	bounds
}

// Lane is a set of methods, and the number of their handlers that run at once over all connections.
type Lane struct {
	Methods []transport.Method
	Workers int // 1 or more
}

// bounds are further limits, which only tests change.
type bounds struct {
	handshakeTimeout time.Duration // for TLS and the hellos together; 10 s
	firstTimeout     time.Duration // at a server, for the dialer's first message; 2 s
	// idleTimeout ends a connection on which no frame arrives; 60 s. A dialer pings every 15 s, or
	// four times within a shorter timeout.
	idleTimeout  time.Duration
	stallTimeout time.Duration // for sending 64 KiB to a peer that does not read; 15 s

	// Limits of a server.
	maxPending int     // connections not authenticated yet; 64, at most half of them from one host
	acceptRate float64 // connections per second from a host, with a burst of four seconds; 16
	// maxCalls is the limit of calls under way per connection, whose answers may all be in memory;
	// 16, at most maxWindow.
	maxCalls int
	// maxUnsent limits the answers that are being made or wait to be sent, in bytes over all
	// connections; 256 MiB. A host above its share (see budget) gets one answer at a time, and
	// ErrBusy for its other requests.
	maxUnsent int64
	// maxBodies limits the bytes received of request bodies longer than shortBody, over all
	// connections; 32 MiB. Requests of a host above its share get ErrBusy.
	maxBodies int64
}

// Memory of a server, in bytes: the answers that are being made or wait to be sent, and the request
// bodies that have arrived.
const (
	MaxUnsent = 256 << 20
	MaxBodies = 32 << 20
)

// Hooks are called for metrics and logs. Any may be nil. They are called concurrently and must not
// block.
type Hooks struct {
	Sent     func(bytes int)                      // on the wire, TLS included
	Received func(bytes int)                      // on the wire, TLS included
	Opened   func(peer transport.ID, host string) // a server's connection is authenticated
	Closed   func(peer transport.ID, host string, why error)
	// Refused is called when a connection was not admitted, or ended before it was authenticated
	// and greeted.
	Refused func(host string, why error)
	// Served is called when a request was answered. bytes is the length of the answer, err the
	// handler's error.
	Served func(r transport.Request, bytes int, took time.Duration, err error)
}

// Reasons for Hooks.Refused, in addition to errors of TLS, of the hello and of the network.
var (
	ErrTooManyPending = errors.New("too many unauthenticated connections")
	ErrAcceptRate     = errors.New("the host opens connections too fast")
	ErrTooManyConns   = errors.New("too many connections")
)

func (o Options) withDefaults() (Options, error) {
	if len(o.Key) != ed25519.PrivateKeySize {
		return o, fmt.Errorf("the node key has %d bytes, an ed25519 key has %d", len(o.Key), ed25519.PrivateKeySize)
	}
	if len(o.ChainID) > MaxChainID {
		return o, fmt.Errorf("chain id %q is longer than %d bytes", o.ChainID, MaxChainID)
	}
	set(&o.handshakeTimeout, 10*time.Second)
	set(&o.firstTimeout, 2*time.Second)
	set(&o.idleTimeout, 60*time.Second)
	set(&o.stallTimeout, 15*time.Second)
	set(&o.MaxConns, 128)
	set(&o.MaxConnsPerHost, 16)
	set(&o.maxPending, 64)
	set(&o.acceptRate, 16)
	set(&o.maxCalls, 16)
	o.maxCalls = min(o.maxCalls, maxWindow)
	set(&o.Workers, 8)
	set(&o.maxUnsent, MaxUnsent)
	set(&o.maxBodies, MaxBodies)
	return o, nil
}

// ForTests returns options with timeouts of minutes, for tests on slow machines, and with a limit
// of calls under way; 0: the default.
func ForTests(o Options, maxCalls int) Options {
	const patience = 5 * time.Minute
	o.handshakeTimeout, o.firstTimeout, o.stallTimeout, o.maxCalls = patience, patience, patience, maxCalls
	return o
}

// set replaces a number that is not positive by its default.
func set[N int | int64 | float64 | time.Duration](v *N, def N) {
	if *v <= 0 {
		*v = def
	}
}
