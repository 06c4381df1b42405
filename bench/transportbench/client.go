package transportbench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/rdma"
	"github.com/starling-kv/starling/transport/tcp"
)

// dialPatience is for a connection, and for its path.
const dialPatience = time.Minute

// client fetches on all paths. It implements role.
type client struct {
	ctx     context.Context //nolint:containedctx // the child's
	b       begin
	pattern []byte
	fabric  *rdma.Fabric // nil: no path by RDMA
	up      chan struct{}
	down    chan error
	byRDMA  atomic.Int64 // bytes
	peers   map[string][]peer
	buffers [][]byte // flight of them for each peer, which the paths share: they take turns
}

// peer is a connection of a path.
type peer interface {
	// fetch makes calls, flight of them at a time, each into one of the buffers, as long as more
	// returns true. It returns when all have been answered, and calls came for each answer with the
	// index of its buffer: concurrently for different buffers, never for the same one.
	fetch(ctx context.Context, buffers [][]byte, more func() bool, came func(buffer int)) error
	close() error
}

func openClient(ctx context.Context, b begin) (role, answer, error) {
	c := &client{ctx: ctx, b: b, pattern: pattern(b.Largest), up: make(chan struct{}, maxPeers), down: make(chan error, maxPeers)}
	if slices.Contains(b.Paths, pathRDMA) {
		c.fabric = newFabric(rdma.Hooks{
			Up:       func(transport.ID, rdma.Way) { c.up <- struct{}{} },
			Down:     func(_ transport.ID, why error) { c.lost(why) },
			Received: func(_ transport.ID, n int) { c.byRDMA.Add(int64(n)) },
		})
	}
	return c, answer{}, nil
}

// lost keeps why a path has ended, or was not made; of many the first ones do.
func (c *client) lost(why error) {
	select {
	case c.down <- why:
	default:
	}
}

// do implements role.
func (c *client) do(r request) (answer, error) {
	switch r.Op {
	case opUsed:
		return answer{Used: usedBy(c.fabric)}, nil
	case opConnect:
		return answer{}, c.connect(r.Peers)
	case opFetch:
		return c.fetch(r)
	}
	return answer{}, errNoSuchRequest
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
			return nil, errors.Join(fmt.Errorf("there is no path: %w", why), conn.Close())
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("no path came up: %w", ctx.Err()), conn.Close())
		}
	}
	return caller{conn}, nil
}

// fetch measures a turn of a path.
func (c *client) fetch(r request) (a answer, err error) {
	peers := c.peers[r.Path]
	if len(peers) == 0 || r.Size > c.b.Largest || r.Flight < 1 || r.Flight > flight {
		return a, fmt.Errorf("%d peers of path %q, %d bytes", len(peers), r.Path, r.Size)
	}
	byRDMA := c.byRDMA.Load()
	machine, known := machineCPU()
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
	if after, is := machineCPU(); is && known {
		a.Machine = after - machine
	}
	if err := errors.Join(errs...); err != nil {
		return a, err
	}
	// A call can return before the hook has counted its last piece: one goroutine counts all.
	if by := c.byRDMA.Load() - byRDMA; r.Path == pathRDMA && by < a.Bytes-tcp.MaxSidePiece {
		why := errors.New("no reason is known")
		select {
		case why = <-c.down:
		default:
		}
		return a, fmt.Errorf("only %d of %d bytes came by RDMA: %w", by, a.Bytes, why)
	}
	return a, c.intact(r, answered)
}

// intact fails unless the last answer in each buffer that was answered into is the server's bytes.
// It clears the buffers: what one turn has brought must not pass for an answer in the next.
func (c *client) intact(r request, answered [][]bool) error {
	for i := range answered {
		for k, is := range answered[i] {
			b := c.buffers[i*flight+k]
			if is && !bytes.Equal(b[:r.Size], c.pattern[:r.Size]) {
				return fmt.Errorf("%s: an answer of %d bytes is damaged", r.Path, r.Size)
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

// close implements role.
func (c *client) close() error {
	err := c.disconnect()
	if c.fabric != nil {
		err = errors.Join(err, c.fabric.Close())
	}
	return err
}
