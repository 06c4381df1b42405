package transportbench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/rdma"
	"github.com/starling-kv/starling/transport/tcp"
)

// dialPatience is the time limit for a connection, and for its RDMA channel.
const dialPatience = time.Minute

// client fetches on all paths. It implements child.Worker.
type client struct {
	ctx     context.Context //nolint:containedctx // the parent kills this process to cancel
	b       begin
	pattern []byte
	fabric  *rdma.Fabric // nil without RDMA
	up      chan struct{}
	down    chan error
	byRDMA  atomic.Int64 // bytes received over RDMA
	peers   map[string][]peer
	buffers [][]byte // flight buffers per peer, shared by the paths, which take turns
}

// peer is a connection on one path.
type peer interface {
	// fetch makes calls as long as more returns true, flight calls at a time, each into one of the
	// buffers. It returns when all calls have been answered. For each response it calls came with
	// the index of its buffer: concurrently for different buffers, but never for the same buffer.
	fetch(ctx context.Context, buffers [][]byte, more func() bool, came func(buffer int)) error
	close() error
}

func openClient(b begin) (worker, answer, error) {
	c := &client{ctx: context.Background(), b: b, pattern: pattern(b.Largest), up: make(chan struct{}, maxPeers), down: make(chan error, maxPeers)}
	if slices.Contains(b.Paths, pathRDMA) {
		c.fabric = newFabric(rdma.Hooks{
			Up:       func(transport.ID, rdma.Way) { c.up <- struct{}{} },
			Down:     func(_ transport.ID, why error) { c.lost(why) },
			Received: func(_ transport.ID, n int) { c.byRDMA.Add(int64(n)) },
		})
	}
	return c, answer{}, nil
}

// lost keeps the reason why an RDMA channel ended or was not set up. If there are too many reasons,
// it keeps the first ones.
func (c *client) lost(why error) {
	select {
	case c.down <- why:
	default:
	}
}

// Do implements child.Worker.
func (c *client) Do(r request, _ *bufio.Reader) (answer, error) {
	switch r.Op {
	case opUsed:
		return answer{Used: usedBy(c.fabric)}, nil
	case opConnect:
		return answer{}, c.connect(r.Peers)
	case opFetch:
		return c.fetch(r)
	}
	return answer{}, fmt.Errorf("unknown request %q", r.Op)
}

// connect replaces all connections.
func (c *client) connect(count int) error {
	if err := c.disconnect(); err != nil {
		return err
	}
	c.peers = make(map[string][]peer)
	for range count * flight {
		c.buffers = append(c.buffers, make([]byte, c.b.Largest))
	}
	for _, path := range c.b.Paths {
		for range count {
			p, err := c.dial(path)
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			c.peers[path] = append(c.peers[path], p)
		}
	}
	return nil
}

func (c *client) dial(path string) (peer, error) {
	ctx, cancel := context.WithTimeout(c.ctx, dialPatience)
	defer cancel()
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(c.b.Host)}}
	if path == pathTCP {
		conn, err := from.DialContext(ctx, "tcp", c.b.Servers[path])
		if err != nil {
			return nil, err
		}
		return plain{conn}, nil
	}
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	o := tcp.Options{Key: key, ChainID: chainID, Connect: func(ctx context.Context, hostPort string) (net.Conn, error) {
		return from.DialContext(ctx, "tcp", hostPort)
	}}
	if path == pathRDMA {
		o.Sides = c.fabric
	}
	conn, err := tcp.NewDialer(o).Dial(ctx, transport.Address{HostPort: c.b.Servers[path]})
	if err != nil {
		return nil, err
	}
	if path == pathRDMA {
		select {
		case <-c.up:
		case why := <-c.down:
			return nil, errors.Join(fmt.Errorf("the RDMA channel failed: %w", why), conn.Close())
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("waiting for the RDMA channel: %w", ctx.Err()), conn.Close())
		}
	}
	return caller{conn}, nil
}

// fetch measures one turn of a path.
func (c *client) fetch(r request) (a answer, err error) {
	peers := c.peers[r.Path]
	if len(peers) == 0 || r.Size > c.b.Largest || r.Flight < 1 || r.Flight > flight {
		return a, fmt.Errorf("invalid request: %d peers of path %q, %d bytes", len(peers), r.Path, r.Size)
	}
	byRDMA := c.byRDMA.Load()
	machine, known := harness.MachineCPU()
	began := time.Now()
	var asked, got atomic.Int64
	more := func() bool {
		return time.Since(began) < r.Limit && asked.Add(int64(r.Size)) <= r.Bytes
	}
	errs := make([]error, len(peers))
	answered := make([][]bool, len(peers)) // by peer and buffer
	var wg sync.WaitGroup
	for i, p := range peers {
		buffers := make([][]byte, r.Flight)
		for k := range buffers {
			buffers[k] = c.buffers[i*flight+k][:r.Size]
		}
		answered[i] = make([]bool, r.Flight)
		came := func(buffer int) {
			answered[i][buffer] = true
			got.Add(int64(r.Size))
		}
		wg.Go(func() { errs[i] = p.fetch(c.ctx, buffers, more, came) })
	}
	wg.Wait()
	a.Bytes, a.Seconds, a.Machine = got.Load(), time.Since(began).Seconds(), -1
	if after, is := harness.MachineCPU(); is && known {
		a.Machine = after - machine
	}
	if err := errors.Join(errs...); err != nil {
		return a, err
	}
	// A call can return before the hook has counted its last piece, because one goroutine counts
	// all pieces.
	if by := c.byRDMA.Load() - byRDMA; r.Path == pathRDMA && by < a.Bytes-tcp.MaxSidePiece {
		why := errors.New("unknown reason")
		select {
		case why = <-c.down:
		default:
		}
		return a, fmt.Errorf("only %d of %d bytes came over RDMA: %w", by, a.Bytes, why)
	}
	return a, c.intact(r, answered)
}

// intact fails unless each buffer that received a response holds the server's bytes. It clears the
// buffers, so that the bytes of one turn cannot pass for a response in the next.
func (c *client) intact(r request, answered [][]bool) error {
	for i := range answered {
		for k, is := range answered[i] {
			b := c.buffers[i*flight+k]
			if is && !bytes.Equal(b[:r.Size], c.pattern[:r.Size]) {
				return fmt.Errorf("%s: a response of %d bytes is damaged", r.Path, r.Size)
			}
			clear(b)
		}
	}
	return nil
}

func (c *client) disconnect() error {
	var errs []error
	for _, peers := range c.peers {
		for _, p := range peers {
			errs = append(errs, p.close())
		}
	}
	c.peers, c.buffers = nil, nil
	return errors.Join(errs...)
}

// Close implements child.Worker.
func (c *client) Close() error {
	err := c.disconnect()
	if c.fabric != nil {
		err = errors.Join(err, c.fabric.Close())
	}
	return err
}
