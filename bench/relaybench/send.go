package relaybench

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/rdma"
	"github.com/starling-kv/starling/transport/tcp"
)

const (
	// receivers is the number of nodes to which the proposer of a block sends it.
	receivers = validators - 1
	// underWay is the number of parts without an answer, as in node/relay.
	underWay = 8
	// sendPatience is the time limit for a connection with its RDMA channel, and for a block.
	sendPatience = time.Minute
	// sendMemory is enough for the channels of both sides.
	sendMemory = 1 << 30

	loopback = "127.0.0.1"
	sendID   = "relay" // chain ID
)

// ends are the addresses of the two sides. With rdma, they are those of devices.
type ends struct {
	sender, receivers string
	rdma              bool
}

// Send has the times to send a block of one size to the receivers, without consensus: from the
// first byte until the sender has the last answer.
type Send struct {
	BlockBytes int               `json:"block_bytes"`
	Plain      harness.Interval  `json:"plain_ms"` // sockets without TLS
	TLS        harness.Interval  `json:"tls_ms"`   // the nodes' transport
	RDMA       *harness.Interval `json:"rdma_ms"`  // null: not measured, because there is no device
	// RDMAShare is the share of the bytes that were sent over RDMA.
	RDMAShare float64 `json:"rdma_share,omitempty"`
}

// sendPath is one way to send blocks to all receivers.
type sendPath interface {
	// send returns when all receivers have the block.
	send(ctx context.Context, block []byte) error
	// close ends both sides.
	close() error
}

// sends measures all sizes and paths in turns.
func sends(ctx context.Context, o Options, at ends, progress *harness.Progress) (all []Send, err error) {
	type entrant struct {
		sendPath
		name string
	}
	var paths []entrant
	defer func() {
		for _, p := range paths {
			err = errors.Join(err, p.close())
		}
	}()
	add := func(name string, p sendPath, err error) error {
		if err == nil {
			paths = append(paths, entrant{p, name})
		}
		return err
	}
	plain, err := openPlain(ctx, at)
	if err := add("plain TCP", plain, err); err != nil {
		return nil, err
	}
	tls, err := openCalls(ctx, at, false)
	if err := add("TCP with TLS", tls, err); err != nil {
		return nil, err
	}
	var overRDMA *calls
	if at.rdma {
		overRDMA, err = openCalls(ctx, at, true)
		if err := add("RDMA", overRDMA, err); err != nil {
			return nil, err
		}
	}
	progress.Begin("send", "blocks", len(o.BlockBytes)*len(paths)*(1+o.Sends))
	for _, size := range o.BlockBytes {
		block := make([]byte, size)
		_, _ = rand.Read(block) // never fails
		var before int64
		if overRDMA != nil {
			before = overRDMA.bypassed.Load()
		}
		ms := map[string][]float64{}
		err := harness.InTurns(1+o.Sends, paths, func(round int, p entrant) error {
			progress.Working(harness.SizeText(size) + ", " + p.name)
			ctx, cancel := context.WithTimeout(ctx, sendPatience)
			defer cancel()
			began := time.Now()
			if err := p.send(ctx, block); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			if round > 0 { // the first one grows buffers
				ms[p.name] = append(ms[p.name], time.Since(began).Seconds()*1e3)
			}
			progress.Add(1)
			return nil
		})
		if err != nil {
			return nil, err
		}
		s := Send{BlockBytes: size, Plain: harness.MedianInterval(ms["plain TCP"]), TLS: harness.MedianInterval(ms["TCP with TLS"])}
		if overRDMA != nil {
			interval := harness.MedianInterval(ms["RDMA"])
			s.RDMA = &interval
			s.RDMAShare = float64(overRDMA.bypassed.Load()-before) / float64(size*receivers*(1+o.Sends))
			if s.RDMAShare == 0 {
				return nil, errors.New("nothing was sent over RDMA")
			}
		}
		all = append(all, s)
	}
	return all, nil
}

// together calls one for each receiver, concurrently.
func together(one func(i int) error) error {
	errs := make([]error, receivers)
	var wg sync.WaitGroup
	for i := range receivers {
		wg.Go(func() { errs[i] = one(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// dialer dials from the sender's address.
func (at ends) dialer() *net.Dialer {
	return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(at.sender)}}
}

// plainPath sends over sockets without TLS: the length of the block, then its parts. A receiver
// answers with one byte once it has the block.
type plainPath struct {
	listener net.Listener
	conns    []net.Conn // of the sender
	wg       sync.WaitGroup
}

func openPlain(ctx context.Context, at ends) (_ *plainPath, err error) {
	ctx, cancel := context.WithTimeout(ctx, sendPatience)
	defer cancel()
	p := &plainPath{}
	if p.listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(at.receivers, "0")); err != nil {
		return nil, err
	}
	p.wg.Go(p.accept)
	for range receivers {
		conn, err := at.dialer().DialContext(ctx, "tcp", p.listener.Addr().String())
		if err != nil {
			return nil, errors.Join(err, p.close())
		}
		p.conns = append(p.conns, conn)
	}
	return p, nil
}

func (p *plainPath) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() {
			defer c.Close()
			receive(c)
		})
	}
}

// receive answers blocks until the connection ends.
func receive(c net.Conn) {
	into := make([]byte, mostBytes)
	var head [4]byte
	for {
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return
		}
		n := binary.BigEndian.Uint32(head[:])
		if n > mostBytes {
			return
		}
		if _, err := io.ReadFull(c, into[:n]); err != nil {
			return
		}
		if _, err := c.Write([]byte{1}); err != nil {
			return
		}
	}
}

func (p *plainPath) send(ctx context.Context, block []byte) error {
	return together(func(i int) error {
		c := p.conns[i]
		stop := context.AfterFunc(ctx, func() { c.Close() })
		defer stop()
		if _, err := c.Write(binary.BigEndian.AppendUint32(nil, uint32(len(block)))); err != nil { //nolint:gosec // at most mostBytes
			return err
		}
		for from := 0; from < len(block); from += partBytes {
			if _, err := c.Write(block[from:min(from+partBytes, len(block))]); err != nil {
				return err
			}
		}
		var answer [1]byte
		_, err := io.ReadFull(c, answer[:])
		return err
	})
}

func (p *plainPath) close() error {
	err := p.listener.Close()
	for _, c := range p.conns {
		c.Close()
	}
	p.wg.Wait()
	return err
}

// calls sends over the nodes' transport, one call for each part, as node/relay does.
type calls struct {
	server   *tcp.Server
	conns    []transport.Conn
	fabrics  []*rdma.Fabric // of the receivers and of the sender; none without RDMA
	bypassed atomic.Int64   // bytes that the sender has sent over RDMA
}

func openCalls(ctx context.Context, at ends, overRDMA bool) (_ *calls, err error) {
	ctx, cancel := context.WithTimeout(ctx, sendPatience)
	defer cancel()
	c := &calls{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	up, down := make(chan struct{}, receivers), make(chan error, 1)
	fabric := func(hooks rdma.Hooks) *rdma.Fabric {
		f := rdma.New(rdma.Options{Allowed: func(transport.ID, netip.Addr) bool { return true }, Memory: sendMemory, Hooks: hooks})
		c.fabrics = append(c.fabrics, f)
		return f
	}
	options := func(handler transport.Handler) (o tcp.Options, err error) {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		return tcp.Options{Key: key, ChainID: sendID, Handler: handler}, err
	}
	server, err := options(transport.HandlerFunc(func(context.Context, transport.Request) ([]byte, error) { return nil, nil }))
	if err != nil {
		return nil, err
	}
	var sender *rdma.Fabric
	if overRDMA {
		server.Sides = fabric(rdma.Hooks{})
		sender = fabric(rdma.Hooks{
			Up: func(transport.ID, rdma.Way) { up <- struct{}{} },
			Down: func(_ transport.ID, why error) {
				select {
				case down <- why:
				default: // the first reason counts
				}
			},
			Sent: func(_ transport.ID, n int) { c.bypassed.Add(int64(n)) },
		})
	}
	if c.server, err = tcp.Listen(net.JoinHostPort(at.receivers, "0"), server); err != nil {
		return nil, err
	}
	for range receivers {
		o, err := options(nil)
		if err != nil {
			return nil, err
		}
		o.Connect = func(ctx context.Context, hostPort string) (net.Conn, error) {
			return at.dialer().DialContext(ctx, "tcp", hostPort)
		}
		if sender != nil {
			o.Sides = sender
		}
		conn, err := tcp.NewDialer(o).Dial(ctx, transport.Address{HostPort: c.server.Addr().String()})
		if err != nil {
			return nil, err
		}
		c.conns = append(c.conns, conn)
		if sender == nil {
			continue
		}
		select {
		case <-up:
		case why := <-down:
			return nil, fmt.Errorf("the RDMA channel failed: %w", why)
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for the RDMA channel: %w", ctx.Err())
		}
	}
	return c, nil
}

func (c *calls) send(ctx context.Context, block []byte) error {
	return together(func(i int) error {
		var next atomic.Int64
		errs := make([]error, underWay)
		var wg sync.WaitGroup
		for k := range underWay {
			wg.Go(func() {
				for errs[k] == nil {
					from := int(next.Add(int64(partBytes))) - partBytes
					if from >= len(block) {
						return
					}
					part := block[from:min(from+partBytes, len(block))]
					_, errs[k] = c.conns[i].Call(ctx, transport.Call{Method: 1, Body: part})
				}
			})
		}
		wg.Wait()
		return errors.Join(errs...)
	})
}

func (c *calls) close() error {
	var errs []error
	for _, conn := range c.conns {
		errs = append(errs, conn.Close())
	}
	if c.server != nil {
		errs = append(errs, c.server.Close())
	}
	for _, f := range c.fabrics {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
