package fabric

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/rdma"
	"github.com/starling-kv/starling/transport/tcp"
)

// probeTimeout limits a probe: the handshake of a channel times out after 15 s.
const probeTimeout = 30 * time.Second

// ErrNoPath: a peer was reached over TLS, but no RDMA channel to it could be established.
var ErrNoPath = errors.New("no RDMA channel to the peer")

// Way describes a channel: the local address and the MTUs of both ports.
type Way = rdma.Way

// ErrAddress: an argument is not the address of a transport.
var ErrAddress = errors.New("invalid address")

// Probe connects to the transport at an address and establishes a channel to it, as a node with
// this configuration would. It returns the channel's properties. Channel and connection are then
// closed.
func Probe(ctx context.Context, c *config.Config, chainID, address string) (Way, error) {
	peer, err := transport.ParseAddress(address)
	if err != nil {
		return Way{}, fmt.Errorf("%w: %w", ErrAddress, err)
	}
	nodeKey, err := config.LoadNodeKey(c.CometBFT)
	if err != nil {
		return Way{}, err
	}
	key, err := config.TransportKey(nodeKey)
	if err != nil {
		return Way{}, err
	}
	return probe(ctx, tcp.Options{Key: key, ChainID: chainID}, peer, rdma.New)
}

func probe(ctx context.Context, o tcp.Options, peer transport.Address, make func(rdma.Options) *rdma.Fabric) (w Way, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	up, down := newSignal[Way](), newSignal[error]()
	f := make(rdma.Options{
		// The peer was named on the command line.
		Allowed: func(transport.ID, netip.Addr) bool { return true },
		Hooks: rdma.Hooks{
			Up:   func(_ transport.ID, w Way) { up.put(w) },
			Down: func(_ transport.ID, why error) { down.put(why) },
		},
	})
	defer func() { err = errors.Join(err, f.Close()) }()
	o.Sides = f
	conn, err := tcp.NewDialer(o).Dial(ctx, peer)
	if err != nil {
		return Way{}, err
	}
	defer conn.Close()
	select {
	case w = <-up:
		return w, nil
	case why := <-down:
		return Way{}, fmt.Errorf("%w %s: %w%s", ErrNoPath, conn.Remote(), why, hint(why))
	case <-conn.Done():
		return Way{}, conn.Err()
	case <-ctx.Done():
		return Way{}, fmt.Errorf("%w %s: %w", ErrNoPath, conn.Remote(), ctx.Err())
	}
}

// hint returns the hint for a reason.
func hint(why error) string {
	switch {
	case errors.Is(why, transport.ErrRefused):
		return ": at the peer, set transport.rdma and name this node's ID in transport.rdma_peers (or its network in transport.rdma_fabric), run starlingd-rdma, and run `starlingd rdma check` there"
	case errors.Is(why, rdma.ErrStalled):
		return ": is UDP port 4791 open at both ends, with the same MTU on the whole path?"
	case rdma.Reason(why) == "device":
		return ": are both addresses in one fabric, with UDP port 4791 open in both directions and the same MTU on the whole path?"
	}
	return ""
}

// signal holds the first value put into it.
type signal[T any] chan T

func newSignal[T any]() signal[T] { return make(signal[T], 1) }

func (s signal[T]) put(v T) {
	select {
	case s <- v:
	default:
	}
}
