// Package tcp carries requests and answers between nodes over TCP and TLS 1.3, each side proved by its node key.
//
//	caller ─ Call ─► Conn ── request, cancel ──► session ─► Handler (Workers at once, over all connections)
//	                  ▲  ▲                          │
//	         its buffer  └─ pieces ≤ 64 KiB, small ─┘        Server: accepts, counts hosts, peers and bytes
//	                        answers overtake large ones
//
// The frames are written down in docs/spec/transport.md. A server says in its hello how many calls a connection may have under way, and a
// client keeps the rest to itself: so a server always reads, cancels are never stuck behind requests, and whoever sends more is dropped.
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

// MaxChainID is how long a chain id may be, in bytes, as in CometBFT.
const MaxChainID = 50

// maxWindow is the most calls under way that a hello can allow.
const maxWindow = 1024

// Options configures a server or a dialer. Zero values stand for the defaults, unless said otherwise.
type Options struct {
	Key ed25519.PrivateKey // proves who this node is
	// ChainID is the chain that this node is of. Peers of other chains are refused. A dialer may leave it empty, if it does not know it yet: it
	// is then answered MethodStatus and MethodGenesis only, and learns the chain id from Conn.ChainID.
	ChainID string
	Handler transport.Handler // of a server

	HandshakeTimeout time.Duration // for TLS and the hellos together; 10 s
	IdleTimeout      time.Duration // without any frame from the other side; a dialer pings every 15 s, or four times as often as this; 60 s
	StallTimeout     time.Duration // for 64 KiB to leave towards a peer that does not read; 15 s

	// Limits of a server.
	MaxConns        int     // 128; where all are taken, a host with fewer replaces a connection of the one that has most
	MaxConnsPerHost int     // per address, per /64 of IPv6; 16
	MaxPending      int     // connections that are not authenticated yet; 64, at most half of them of one host
	AcceptRate      float64 // connections a second that a host may open, with a burst of four seconds; 16
	MaxCallsPerConn int     // calls under way per connection: an answer of each may be in memory; 16, at most 1024
	Workers         int     // handlers running at once over all connections; 8
	// MaxUnsent bounds the answers that wait to be sent, in bytes over all connections: above it a connection gets one answer at a time, and
	// ErrBusy for the rest. 256 MiB.
	MaxUnsent int64
	// MaxBodies bounds the request bodies in memory that are longer than 4 KiB, in bytes over all connections; ErrBusy above. 32 MiB.
	MaxBodies int64
	// Rate and RatePerPeer cap the bytes of answers a second, over all peers and for each; 0: no cap.
	Rate, RatePerPeer int64

	Hooks Hooks

	// Connect opens a dialer's connections; nil: TCP.
	Connect func(ctx context.Context, hostPort string) (net.Conn, error)
}

// Hooks tells what happens, for metrics and logs. Any may be nil; they are called concurrently and must not block.
type Hooks struct {
	Sent     func(bytes int)                      // on the wire, TLS included
	Received func(bytes int)                      // on the wire, TLS included
	Opened   func(peer transport.ID, host string) // a server's connection is authenticated
	Closed   func(peer transport.ID, host string, why error)
	Refused  func(host string, why error) // a connection ended before it was authenticated and greeted, or was not let in
	// Served: a request was answered; bytes is the answer's length, err what the handler returned.
	Served func(r transport.Request, bytes int, took time.Duration, err error)
}

// Reasons for Hooks.Refused, beside those of TLS, of the hello and of the network.
var (
	ErrTooManyPending = errors.New("too many connections are not authenticated yet")
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
	set(&o.HandshakeTimeout, 10*time.Second)
	set(&o.IdleTimeout, 60*time.Second)
	set(&o.StallTimeout, 15*time.Second)
	set(&o.MaxConns, 128)
	set(&o.MaxConnsPerHost, 16)
	set(&o.MaxPending, 64)
	set(&o.AcceptRate, 16)
	set(&o.MaxCallsPerConn, 16)
	o.MaxCallsPerConn = min(o.MaxCallsPerConn, maxWindow)
	set(&o.Workers, 8)
	set(&o.MaxUnsent, 256<<20)
	set(&o.MaxBodies, 32<<20)
	return o, nil
}

// set gives a number that is not positive its default.
func set[N int | int64 | float64 | time.Duration](v *N, def N) {
	if *v <= 0 {
		*v = def
	}
}
