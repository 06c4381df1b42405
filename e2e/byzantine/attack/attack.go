// Package attack attacks a node's peers without being asked.
//
//	             ┌─ babble   meaningless p2p messages               ─┐ over the p2p connections that the node has
//	             ├─ spam     invalid transactions                   ─┘
//	Attack.Run ──┼─ flood    transport requests, a window full      ─── over connections with node IDs of its own making
//	             ├─ connect  sockets: held, half open, closed       ─┐ to the ports of p2p, transport and RPC
//	             └─ garbage  bytes that are not a handshake         ─┘
//
// Rates and numbers of sockets are bounded by the constants below, so that an attack tests the
// limits of its victims and not the size of the machine. Only hosts in Options are attacked, and
// only on loopback and private addresses.
package attack

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cometbft/cometbft/p2p"

	"github.com/starling-kv/starling/e2e/byzantine/liar"
	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/transport"
)

// Bounds of an attack, over all targets.
const (
	maxSockets   = 1000 // open at a time, in mode Connect
	connectsRate = 60   // a second
	garbageRate  = 20   // connections a second
	babbleRate   = 20   // messages a second to each peer
	spamRate     = 100  // messages a second, of spamBatch transactions
	floodRate    = 1500 // requests a second
)

const (
	dialTimeout = 5 * time.Second
	pause       = time.Second // after an error
)

// portOffset is the default difference between the ports of p2p and of the transport
// (docs/spec/transport.md leaves it to the operator).
const portOffset = 10

// Options select the attacks and their targets.
type Options struct {
	Set     liar.Set
	Seed    uint64
	ChainID string
	Targets []Target
	RPC     []string          // RPC servers, host:port, for Connect and Garbage
	From    net.IP            // source address of all sockets; nil: the system's choice
	KVStore bool              // Spam sends what CometBFT's kvstore refuses
	Peers   func() []p2p.Peer // peers that the node is connected to, for Babble and Spam
	// called now and then, and at the end, with the counts so far; may be nil
	Report func(counts string)
}

// Target has the addresses of a peer's ports, as host:port.
type Target struct {
	P2P, Transport string
}

// ParseTargets reads p2p.persistent_peers, and refuses addresses that are neither loopback nor
// private.
func ParseTargets(ctx context.Context, peers string) ([]Target, error) {
	var targets []Target
	for peer := range strings.SplitSeq(peers, ",") {
		if peer = strings.TrimSpace(peer); peer == "" {
			continue
		}
		a, err := transport.ParseAddress(peer)
		if err != nil {
			return nil, err
		}
		host, port, err := net.SplitHostPort(a.HostPort)
		if err != nil {
			return nil, err
		}
		number, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("address %q: port: %w", peer, err)
		}
		if err := CheckHost(ctx, host); err != nil {
			return nil, err
		}
		targets = append(targets, Target{P2P: a.HostPort, Transport: net.JoinHostPort(host, strconv.FormatUint(number+portOffset, 10))})
	}
	return targets, nil
}

// CheckHost refuses a host with a public address, which could belong to somebody else.
func CheckHost(ctx context.Context, host string) error {
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return err
	}
	for _, ip := range ips {
		if !ip.IsLoopback() && !ip.IsPrivate() && !ip.IsLinkLocalUnicast() {
			return fmt.Errorf("%s is %s, a public address: only test networks are attacked, on loopback and private addresses", host, ip)
		}
	}
	return nil
}

// Attack is the attack of one node.
type Attack struct {
	o Options

	messages, txs, requests, answers, connects, garbage atomic.Int64
}

// New returns an attack that has not begun.
func New(o Options) *Attack { return &Attack{o: o} }

// Run attacks until ctx ends, and returns when every socket is closed.
func (a *Attack) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for mode, run := range map[liar.Mode]func(context.Context){
		liar.Babble: a.babble, liar.Spam: a.spam, liar.Flood: a.flood, liar.Connect: a.connect, liar.Garbage: a.throwGarbage,
	} {
		if a.o.Set.Has(mode) {
			wg.Go(func() { run(ctx) })
		}
	}
	if a.o.Report != nil {
		wg.Go(func() { a.report(ctx) })
	}
	wg.Wait()
}

// report reports the counts.
func (a *Attack) report(ctx context.Context) {
	for sleep.For(ctx, 10*time.Second) == nil {
		a.o.Report(a.Counts())
	}
	a.o.Report(a.Counts())
}

// Counts returns a line with the counts of all attacks.
func (a *Attack) Counts() string {
	return fmt.Sprintf("%d p2p messages, %d transactions, %d transport requests (%d answered), %d connections, %d of them with garbage",
		a.messages.Load(), a.txs.Load(), a.requests.Load(), a.answers.Load(), a.connects.Load(), a.garbage.Load())
}

// ports returns all addresses that can be connected to.
func (a *Attack) ports() []string {
	var ports []string
	for _, t := range a.o.Targets {
		ports = append(ports, t.P2P, t.Transport)
	}
	return append(ports, a.o.RPC...)
}

// dial opens a socket.
func (a *Attack) dial(ctx context.Context, hostPort string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout}
	if a.o.From != nil {
		d.LocalAddr = &net.TCPAddr{IP: a.o.From}
	}
	return d.DialContext(ctx, "tcp", hostPort)
}
