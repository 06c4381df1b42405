package dsmbench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/client"
	"github.com/starling-kv/starling/transport"
)

// The feed phase measures what the updates of blocks cost a validator, by the number of ranges. The
// storage nodes are simulated in its process: they acknowledge each part at once, and keep nothing.
//
//	Committed ──► one update for each range ──► both replicas ──► durable
const (
	feedNodes    = 100 // they share the ranges
	feedReplicas = 2
	feedBlocks   = 40 // measured
	feedWarm     = 5

	mostFeedRanges = 4000 // for which the targets are set
)

// feedRanges are the numbers of ranges, one row each.
func (o *Options) feedRanges() []int {
	if o.Quick {
		return []int{100, 200}
	}
	return []int{100, 1000, mostFeedRanges}
}

// runFeed measures a new process for each number of ranges.
func (r *runner) runFeed(ctx context.Context) error {
	ranges := r.o.feedRanges()
	r.progress.Begin("updates", "ranges", len(ranges))
	for _, n := range ranges {
		r.progress.Working(fmt.Sprintf("%d ranges", n))
		p, err := harness.StartRunning(ctx, ChildName, roleFeeder, begin{Role: roleFeeder, Spec: r.o.spec()}, nil)
		if err != nil {
			return err
		}
		var a answer
		err = p.Ask(request{Op: opFeed, N: r.o.few(feedBlocks), Ranges: n}, &a)
		p.End()
		if err != nil {
			return err
		}
		r.result.Feed = append(r.result.Feed, a.Feed)
		r.progress.Add(1)
	}
	return nil
}

// feeder is a validator that only makes updates and sends them.
type feeder struct {
	g     *generator
	state *avlstar.Version
}

func openFeeder(b begin) (*feeder, error) {
	f := &feeder{g: newGenerator(b.Spec)}
	var err error
	f.state, err = newState(f.g, func(int) {})
	return f, err
}

// Close implements child.Worker.
func (f *feeder) Close() error {
	f.state.Release()
	return nil
}

// Do implements child.Worker.
func (f *feeder) Do(r request, _ *bufio.Reader) (a answer, err error) {
	if r.Op != opFeed {
		return a, fmt.Errorf("unknown request %q", r.Op)
	}
	a.Feed, err = f.feed(context.Background(), r.Ranges, r.N)
	return a, err
}

// feed makes blocks, one after the updates of the other.
func (f *feeder) feed(ctx context.Context, n, blocks int) (row FeedRow, err error) {
	debug.FreeOSMemory() // what the state's construction has left
	before := f.memory()
	m, nodes, err := simulate(f.state, n)
	if err != nil {
		return row, err
	}
	c, err := client.New(client.Options{Map: m, Dialer: nodes})
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	c.Begin(firstHeight)
	var clock, cpu []float64
	changed := 0
	for i := range feedWarm + blocks {
		height, changes := firstHeight+int64(i)+1, f.g.next(false).changes
		next, err := f.state.Apply(changes)
		if err != nil {
			return row, err
		}
		used, from := harness.CPUTime(), time.Now()
		if err := c.Committed(height, next, f.state, changes); err != nil {
			return row, err
		}
		if err := awaitDurable(ctx, c, height); err != nil {
			return row, err
		}
		if i >= feedWarm {
			clock, cpu = append(clock, time.Since(from).Seconds()), append(cpu, (harness.CPUTime()-used).Seconds())
			changed += changedRanges(m.Ranges, changes)
		}
		f.state.Release()
		f.state = next
	}
	row = FeedRow{
		Ranges: n, Changed: float64(changed) / float64(blocks), MS: 1e3 * harness.Median(clock), CPUMS: 1e3 * harness.Median(cpu),
		KeptBytes: c.UpdateBytes(), MemoryBytes: max(f.memory()-before, 0),
	}
	return row, nil
}

// memory returns the process's anonymous memory without the tree's.
func (f *feeder) memory() int64 {
	return harness.OwnMemory().Anon - int64(treeBytes(f.state.Memory()))
}

// awaitDurable waits until all ranges have a height on disk.
func awaitDurable(ctx context.Context, c *client.Client, height int64) error {
	every := time.NewTicker(time.Millisecond)
	defer every.Stop()
	for began := time.Now(); c.Durable() < height; <-every.C {
		if time.Since(began) > patience {
			return fmt.Errorf("block %d is not on the storage nodes within %s", height, patience)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// changedRanges returns the number of ranges with a changed key.
func changedRanges(r *dsm.Ranges, changes []avlstar.Change) int {
	var all []int
	for _, c := range changes {
		all = append(all, r.Index(c.Key))
	}
	slices.Sort(all)
	return len(slices.Compact(all))
}

// simulated are storage nodes without a network. Their handler is simulatedNode.
type simulated map[string]*simulatedNode // by HostPort

// simulate divides v into n ranges, and makes their nodes.
func simulate(v *avlstar.Version, n int) (m client.Map, nodes simulated, err error) {
	ranges, err := evenRanges(v, n)
	if err != nil {
		return m, nil, err
	}
	m.Addresses, nodes = map[dsm.NodeID]transport.Address{}, simulated{}
	var all []*simulatedNode
	for i := range feedNodes {
		node := &simulatedNode{address: transport.Address{ID: transport.ID(fmt.Sprintf("%040x", i)), HostPort: fmt.Sprintf("node-%d:1", i)}}
		m.Addresses[dsm.NodeID(node.address.ID)], nodes[node.address.HostPort] = node.address, node
		all = append(all, node)
	}
	var placed []dsm.Placement
	for i, r := range ranges {
		p := dsm.Placement{Range: r.tree()}
		for k := range feedReplicas {
			node := all[(i+k*feedNodes/feedReplicas)%feedNodes]
			node.claims = append(node.claims, dsm.Claim{Range: p.Range, Oldest: firstHeight, Newest: firstHeight, Durable: firstHeight, Needs: firstHeight + 1})
			p.Replicas = append(p.Replicas, dsm.NodeID(node.address.ID))
		}
		placed = append(placed, p)
	}
	for _, node := range all {
		slices.SortFunc(node.claims, func(a, b dsm.Claim) int { return dsm.CompareRanges(a.Range, b.Range) })
	}
	m.Ranges, err = dsm.NewRanges(placed)
	return m, nodes, err
}

// Dial implements transport.Dialer.
func (s simulated) Dial(_ context.Context, a transport.Address) (transport.Conn, error) {
	return simulatedConn{node: s[a.HostPort], done: make(chan struct{})}, nil
}

// simulatedNode acknowledges updates.
type simulatedNode struct {
	address transport.Address
	mu      sync.Mutex
	claims  []dsm.Claim // by ascending ranges; guarded by mu once the node is dialled
}

// answer answers a call.
func (n *simulatedNode) answer(c transport.Call) ([]byte, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch c.Method {
	case dsm.MethodRanges:
		return dsm.EncodeClaims(n.claims)
	case dsm.MethodUpdate:
		p, err := dsm.DecodeUpdatePart(c.Body)
		if err != nil {
			return nil, err
		}
		i, found := slices.BinarySearchFunc(n.claims, p.Range, func(c dsm.Claim, r avlstar.KeyRange) int { return dsm.CompareRanges(c.Range, r) })
		if !found {
			return nil, transport.ErrGone
		}
		claim, have := &n.claims[i], p.Offset+uint32(len(p.Part))
		if have == p.Total && p.Height == claim.Needs {
			claim.Newest, claim.Durable, claim.Needs = p.Height, p.Height, p.Height+1
		}
		return dsm.UpdateAnswer{Durable: claim.Durable, Needs: claim.Needs, Have: have}.Encode(), nil
	}
	return nil, transport.ErrRefused
}

// simulatedConn is a connection to a node.
type simulatedConn struct {
	node *simulatedNode
	done chan struct{} // never closed
}

// Remote implements transport.Conn.
func (c simulatedConn) Remote() transport.Address { return c.node.address }

// ChainID implements transport.Conn.
func (simulatedConn) ChainID() string { return chainID }

// Call implements transport.Conn.
func (c simulatedConn) Call(_ context.Context, call transport.Call) ([]byte, error) {
	return c.node.answer(call)
}

// Done implements transport.Conn.
func (c simulatedConn) Done() <-chan struct{} { return c.done }

// Err implements transport.Conn.
func (simulatedConn) Err() error { return nil }

// Close implements transport.Conn.
func (simulatedConn) Close() error { return nil }
