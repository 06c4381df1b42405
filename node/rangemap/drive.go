package rangemap

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/internal/durable"
	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/transport"
)

const (
	pollEvery = 250 * time.Millisecond // shorter than most blocks
	// steady is the number of blocks that new replicas must apply while they follow the old ones in
	// each poll: one that is opened again is behind for a moment.
	steady = 2
	// closeBy is the number of blocks that a replica which follows may be behind the best one.
	closeBy = 3
	// settling is the number of blocks after which all validators that have a map send the updates
	// of its ranges: replicas are up to two blocks behind the head, and a validator may need a
	// block for the paths to new edges.
	settling = 5
	// refuseAfter is the time within which a replica must be seen to follow so that another one can
	// be dropped.
	refuseAfter = 2 * askTimeout
)

// Driver makes changes of a running network's map on behalf of the operator.
type Driver struct {
	Dialer transport.Dialer
	Key    ed25519.PrivateKey // of the map's operator
	Path   string             // where new versions are written before a node gets them
	// Others are further nodes that get new versions, such as validators. They come first: if one
	// of them refuses a map, no storage node gets it.
	Others []transport.Address
	// Progress is called about four times a second while a step takes time.
	Progress func(Progress)
}

// ErrRefused: a validator refuses a map. The change was taken back.
var ErrRefused = errors.New("a validator refuses the map, and its log says why: perhaps a range would have fewer storage nodes than its state.min_acks")

// ErrLastReplica: a range would be left without a replica that follows the chain.
var ErrLastReplica = errors.New("no replica that stays follows the chain: wait until `starlingd storage ranges` shows one with the newest blocks, or move the replica instead of dropping it")

// Progress describes a step of a change.
type Progress struct {
	Version uint64 // of the map that nodes take
	// Waits are the nodes and ranges that the step waits for.
	Waits []string
}

func (p Progress) String() string {
	return fmt.Sprintf("map version %d: waiting for %s", p.Version, strings.Join(p.Waits, "; "))
}

// Change spreads a planned map, waits until its new replicas follow the chain, and finishes the
// change. It returns the last map that was spread, also with an error; Continue then goes on. After
// ErrLastReplica, nothing was spread.
func (d *Driver) Change(ctx context.Context, old, during *config.StorageNodes) (*config.StorageNodes, error) {
	if err := d.checkDrop(ctx, old, during); err != nil {
		return old, err
	}
	signed, err := d.Spread(ctx, old, during)
	if err != nil {
		return signed, err
	}
	replicas := added(old, signed)
	if !IsChanging(signed) { // nothing goes: a replica was added
		return signed, d.wait(ctx, signed, replicas)
	}
	after, err := Finish(signed)
	if err != nil {
		return signed, err
	}
	return d.finish(ctx, signed, after, replicas)
}

// Continue finishes a change that was interrupted.
func (d *Driver) Continue(ctx context.Context, during *config.StorageNodes) (*config.StorageNodes, error) {
	after, err := Finish(during)
	if err != nil {
		return during, err
	}
	d.push(ctx, during)
	all := slices.Clone(during.Next)
	for _, l := range during.Leaving { // it is not known which of the other replicas was added
		i, _ := during.Ranges.Find(l.Range)
		stay := during.Ranges.Shard(i)
		stay.Replicas = without(stay.Replicas, l.Replicas)
		all = append(all, stay)
	}
	return d.finish(ctx, during, after, all)
}

// checkDrop returns ErrLastReplica if a range loses a replica and gets no new one, and none of the
// others follows the chain. One is enough: the operator may want to drop another one next.
func (d *Driver) checkDrop(ctx context.Context, old, during *config.StorageNodes) error {
	for _, l := range during.Leaving {
		i, _ := old.Ranges.Find(l.Range)
		k, _ := during.Ranges.Find(l.Range)
		before, stay := old.Ranges.Shard(i).Replicas, without(during.Ranges.Shard(k).Replicas, l.Replicas)
		if len(without(stay, before)) > 0 {
			continue // the change waits for the new one
		}
		if err := d.awaitOne(ctx, old, l.Range, stay); err != nil {
			return err
		}
	}
	return nil
}

// awaitOne returns nil once one of the replicas of a current range is close to the best one, and
// ErrLastReplica after refuseAfter.
func (d *Driver) awaitOne(ctx context.Context, m *config.StorageNodes, r avlstar.KeyRange, replicas []dsm.NodeID) error {
	open := d.open()
	defer open.close()
	for began := time.Now(); ; {
		reports := d.reports(ctx, m, open)
		best := newest(m, reports, r)
		follows := func(c dsm.Claim) bool { return c.Range.Equal(r) && c.Newest > 0 && c.Newest >= best-closeBy }
		switch {
		case slices.ContainsFunc(replicas, func(n dsm.NodeID) bool { return slices.ContainsFunc(reports[n].claims, follows) }):
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case time.Since(began) >= refuseAfter:
			return fmt.Errorf("range %v: %w", r, ErrLastReplica)
		}
		_ = sleep.For(ctx, pollEvery)
	}
}

// finish spreads the map after a change, once replicas follow the chain.
func (d *Driver) finish(ctx context.Context, during, after *config.StorageNodes, replicas []dsm.Placement) (*config.StorageNodes, error) {
	if err := d.wait(ctx, during, replicas); err != nil {
		return during, err
	}
	signed, err := d.Spread(ctx, during, after)
	if err != nil {
		return signed, err
	}
	return signed, d.wait(ctx, signed, nil)
}

// Spread signs and writes the map that follows old, and offers it to all nodes, without waiting for
// them. It returns the last map that it has written, also with an error.
func (d *Driver) Spread(ctx context.Context, old, m *config.StorageNodes) (*config.StorageNodes, error) {
	signed, err := d.write(m)
	if err != nil {
		return old, err
	}
	if d.offer(ctx, signed) {
		d.push(ctx, signed)
		return signed, nil
	}
	back := edited(signed)
	back.Addresses = maps.Clone(old.Addresses)
	signed, err = d.write(settled(back, old.Ranges))
	if err != nil {
		return signed, errors.Join(ErrRefused, err)
	}
	d.offer(ctx, signed)
	d.push(ctx, signed)
	return signed, ErrRefused
}

// write signs a map and writes it, before any node gets it.
func (d *Driver) write(m *config.StorageNodes) (*config.StorageNodes, error) {
	signed, err := m.Sign(d.Key)
	if err != nil {
		return nil, err
	}
	return signed, durable.Write(d.Path, signed.Text, 0o600)
}

// offer offers a map to Others, and reports whether none of them refuses it. Nodes that have the
// whole state take no map.
func (d *Driver) offer(ctx context.Context, m *config.StorageNodes) bool {
	var refused atomic.Bool
	open := d.open()
	defer open.close()
	open.each(ctx, d.Others, func(ctx context.Context, _ transport.Address, conn transport.Conn) {
		if has, err := Ask(ctx, conn, dsm.Map{Version: m.Version}); err != nil || has.Version == 0 || has.Version >= m.Version {
			return
		}
		if _, err := Ask(ctx, conn, dsm.Map{Version: m.Version, Text: m.Text}); errors.Is(err, transport.ErrRefused) {
			refused.Store(true)
		}
	})
	return !refused.Load()
}

// push offers a map to all storage nodes. Those that it does not reach ask others for it.
func (d *Driver) push(ctx context.Context, m *config.StorageNodes) {
	open := d.open()
	defer open.close()
	open.each(ctx, slices.Collect(maps.Values(m.Addresses)), func(ctx context.Context, _ transport.Address, conn transport.Conn) {
		_, _ = Ask(ctx, conn, dsm.Map{Version: m.Version, Text: m.Text})
	})
}

// connections stay open from one each to the next.
type connections struct {
	dialer transport.Dialer
	mu     sync.Mutex
	idle   map[transport.Address]transport.Conn // guarded by mu
}

// open returns connections that the caller closes.
func (d *Driver) open() *connections {
	return &connections{dialer: d.Dialer, idle: map[transport.Address]transport.Conn{}}
}

func (c *connections) close() {
	for _, conn := range c.idle {
		_ = conn.Close()
	}
}

// each calls f concurrently with a connection to each node that can be reached.
func (c *connections) each(ctx context.Context, addresses []transport.Address, f func(context.Context, transport.Address, transport.Conn)) {
	var all sync.WaitGroup
	for _, a := range addresses {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			conn, err := c.take(ctx, a)
			if err != nil {
				return
			}
			f(ctx, a, conn)
			if ctx.Err() != nil || !c.keep(a, conn) { // the node may not answer on this connection
				_ = conn.Close()
			}
		})
	}
	all.Wait()
}

// take returns a connection to a node. It does not return the same one again before keep.
func (c *connections) take(ctx context.Context, a transport.Address) (transport.Conn, error) {
	c.mu.Lock()
	conn := c.idle[a]
	delete(c.idle, a)
	c.mu.Unlock()
	switch {
	case conn == nil:
	case conn.Err() == nil:
		return conn, nil
	default:
		_ = conn.Close()
	}
	return c.dialer.Dial(ctx, a)
}

// keep reports whether it keeps a connection: it works, and is the only one to the node.
func (c *connections) keep(a transport.Address, conn transport.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.idle[a] != nil || conn.Err() != nil {
		return false
	}
	c.idle[a] = conn
	return true
}

// added returns the replicas that a map has and an older one does not have.
func added(old, m *config.StorageNodes) (all []dsm.Placement) {
	all = slices.Clone(m.Next)
	for i := range m.Ranges.Len() {
		s := m.Ranges.Shard(i)
		k, same := old.Ranges.Find(s.Range)
		if !same {
			continue
		}
		if fresh := without(s.Replicas, old.Ranges.Shard(k).Replicas); len(fresh) > 0 {
			all = append(all, dsm.Placement{Range: s.Range, Replicas: fresh})
		}
	}
	return all
}

// report is what a node says about itself.
type report struct {
	version uint64
	claims  []dsm.Claim
}

// wait returns once all nodes that can be reached have a map, and replicas follow the current
// ranges with their keys.
func (d *Driver) wait(ctx context.Context, m *config.StorageNodes, replicas []dsm.Placement) error {
	open := d.open()
	defer open.close()
	waits := []string{"its nodes"} // until they were asked
	common := int64(-1)            // newest height when all nodes had the map; -1: they do not yet
	until := int64(0)              // height to reach while they follow; 0: they do not yet
	for {
		reports := d.reports(ctx, m, open)
		if ctx.Err() == nil { // otherwise, they are not complete
			best := newest(m, reports, avlstar.KeyRange{})
			if waits = withoutMap(m, reports); len(waits) == 0 {
				if common < 0 {
					common = best
				}
				waits = behind(m, replicas, reports, common+settling)
			}
			switch {
			case len(waits) > 0:
				until = 0
			case until == 0:
				until = best + steady
			}
			if until > 0 {
				waits = behind(m, replicas, reports, until)
			}
		}
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("map version %d is not complete yet (waiting for %s): %w", m.Version, strings.Join(waits, "; "), context.Cause(ctx))
		case len(waits) == 0:
			return nil
		case d.Progress != nil:
			d.Progress(Progress{m.Version, waits})
		}
		_ = sleep.For(ctx, pollEvery)
	}
}

func (d *Driver) reports(ctx context.Context, m *config.StorageNodes, open *connections) map[dsm.NodeID]report {
	var mu sync.Mutex
	reports := map[dsm.NodeID]report{}
	open.each(ctx, append(slices.Collect(maps.Values(m.Addresses)), d.Others...), func(ctx context.Context, a transport.Address, conn transport.Conn) {
		answer, err := Ask(ctx, conn, dsm.Map{Version: m.Version})
		if err == nil && answer.Version < m.Version { // push did not reach it
			answer, err = Ask(ctx, conn, dsm.Map{Version: m.Version, Text: m.Text})
		}
		if err != nil {
			return // it does not answer, or it has the whole state and takes no map
		}
		r := report{version: answer.Version}
		r.claims, _ = Claims(ctx, conn) // no claims: it is a validator, or it has no range yet
		mu.Lock()
		defer mu.Unlock()
		reports[dsm.NodeID(a.ID)] = r
	})
	return reports
}

// withoutMap returns the nodes with an older map.
func withoutMap(m *config.StorageNodes, reports map[dsm.NodeID]report) (waits []string) {
	for n, r := range reports {
		if r.version < m.Version {
			waits = append(waits, fmt.Sprintf("%s, which has map version %d", n, r.version))
		}
	}
	slices.Sort(waits)
	return waits
}

// behind returns the replicas that do not follow yet, or not up to a height.
func behind(m *config.StorageNodes, replicas []dsm.Placement, reports map[dsm.NodeID]report, least int64) (waits []string) {
	for _, p := range replicas {
		best := newest(m, reports, p.Range)
		for _, n := range p.Replicas {
			r, answers := reports[n]
			i := slices.IndexFunc(r.claims, func(c dsm.Claim) bool { return c.Range.Equal(p.Range) })
			switch {
			case !answers:
				waits = append(waits, fmt.Sprintf("%s, which does not answer", m.Addresses[n]))
			case i < 0 || r.claims[i].Newest == 0:
				waits = append(waits, fmt.Sprintf("range %v at %s, which is fetching it", p.Range, m.Addresses[n]))
			case best == 0 || r.claims[i].Newest < best-closeBy:
				waits = append(waits, fmt.Sprintf("range %v at %s, which is at block %d of %d", p.Range, m.Addresses[n], r.claims[i].Newest, best))
			case r.claims[i].Oldest == r.claims[i].Newest:
				// It has the state that it fetched, and no update since. Perhaps no validator has
				// the next one.
				waits = append(waits, fmt.Sprintf("range %v at %s, which needs the update of block %d", p.Range, m.Addresses[n], r.claims[i].Newest+1))
			case r.claims[i].Newest < least:
				waits = append(waits, fmt.Sprintf("range %v at %s, which is at block %d: it must follow until block %d",
					p.Range, m.Addresses[n], r.claims[i].Newest, least))
			}
		}
	}
	slices.Sort(waits)
	return slices.Compact(waits)
}

// newest returns the newest height that a replica of a current range with keys of r reports.
func newest(m *config.StorageNodes, reports map[dsm.NodeID]report, r avlstar.KeyRange) (best int64) {
	for i := range m.Ranges.Len() {
		s := m.Ranges.Shard(i)
		if !s.Range.Overlaps(r) {
			continue
		}
		for _, n := range s.Replicas {
			for _, c := range reports[n].claims {
				if c.Range.Equal(s.Range) {
					best = max(best, c.Newest)
				}
			}
		}
	}
	return best
}
