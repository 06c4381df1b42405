package storagenode

import (
	"context"
	"runtime"
	"slices"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/internal/wake"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/transport"
)

// role is what the map of the ranges says about a range of this node.
type role int

const (
	current role = iota // one of the current ranges
	next                // it will replace current ranges
	retired             // not in the map: it serves until other nodes have its keys
)

const (
	// retireAfter is the time for which a retired range serves in any case: validators that do not
	// have the new map yet ask for it.
	retireAfter = 30 * time.Second
	// retireEvery is the interval of checks whether a retired range can be removed.
	retireEvery = 5 * time.Second
	// enough is the number of replicas that must have the keys of a retired range.
	enough = 2
)

// all returns the ranges of this node. The caller must not modify the slice.
func (n *Process) all() []*place {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.places
}

// replicasOf returns the nodes that have exactly this range in a map; nil: it is not in the map.
func replicasOf(nodes *config.StorageNodes, r avlstar.KeyRange) []dsm.NodeID {
	for s := range nodes.Ranges.All(nodes.Next) {
		if s.Range.Equal(r) {
			return s.Replicas
		}
	}
	return nil
}

// SetMap replaces the map of the ranges while the node runs. It takes effect soon: new ranges are
// filled from nodes that have their keys, and ranges that are no longer in the map are removed once
// other nodes have all their keys.
func (n *Process) SetMap(nodes *config.StorageNodes) {
	n.newMap.Store(nodes)
	wake.Up(n.mapSet)
}

// changeMap applies the last SetMap. Only the follower calls it.
func (n *Process) changeMap(ctx context.Context) error {
	nodes := n.newMap.Swap(nil)
	if nodes == nil {
		return nil
	}
	n.changing.Lock()
	defer n.changing.Unlock()
	n.nodes.Store(nodes)
	added := placesOf(nodes, dsm.NodeID(n.ID()), rangesDir(n.config))
	n.mu.Lock()
	places := slices.Clone(n.mu.places)
	for _, p := range places {
		i := slices.IndexFunc(added, func(o *place) bool { return o.keys.Equal(p.keys) })
		switch {
		case i >= 0:
			p.role = added[i].role
			added = slices.Delete(added, i, i+1)
		case p.role != retired:
			p.role, p.retiredAt = retired, time.Now()
		}
	}
	n.mu.Unlock()
	for _, p := range added {
		if err := n.openPlace(ctx, p); err != nil {
			return err
		}
	}
	places = append(places, added...)
	slices.SortFunc(places, func(a, b *place) int { return dsm.CompareRanges(a.keys, b.keys) })
	n.mu.Lock()
	n.mu.places = places
	n.mu.Unlock()
	n.log.Info("Taking a new map of the ranges", "map_version", nodes.Version, "ranges", len(places), "new", len(added))
	if len(added) > 0 {
		n.checkMemory(len(places))
	}
	return n.changed()
}

// checkMemory logs an error if a map has given the node more ranges than its memory is enough for.
// It does not refuse the map: validators may wait for this node to acknowledge updates.
func (n *Process) checkMemory(ranges int) {
	_, limits := n.chunks.manager.Kept()
	err := budgetsOf(n.config.App, ranges, runtime.GOMAXPROCS(0), limits.Disk).Check(n.config.App.MinMemoryBytes)
	if err != nil {
		n.log.Error("The new map gives this node more ranges than its memory is enough for: it may run out of memory now, and its next start is refused",
			"ranges", ranges, "err", err)
	}
}

// retire removes a range that is no longer in the map, in parallel with the follower, if other
// nodes have all its keys.
func (n *Process) retire(ctx context.Context, p *place) {
	now := time.Now()
	if now.Before(p.tryFrom) || now.Sub(p.retiredAt) < n.retireAfter {
		return
	}
	p.tryFrom = now.Add(retireEvery)
	p.taken.Store(true)
	n.taking.Go(func() {
		defer p.taken.Store(false)
		if p.replica != nil {
			height, _ := p.replica.Newest()
			if !n.isReplaced(ctx, p.keys, height) {
				return
			}
		}
		if err := n.remove(p); err != nil {
			n.fail(err)
		}
	})
}

// remove closes a range and deletes its data.
func (n *Process) remove(p *place) error {
	n.changing.Lock() // a newer map could use the folder again
	defer n.changing.Unlock()
	n.mu.Lock()
	if p.role != retired {
		n.mu.Unlock()
		return nil
	}
	n.mu.places = slices.DeleteFunc(slices.Clone(n.mu.places), func(o *place) bool { return o == p })
	n.mu.Unlock()
	if err := p.dropFetched(); err != nil {
		return err
	}
	if err := n.dropReplica(p); err != nil {
		return err
	}
	if err := n.changed(); err != nil {
		return err
	}
	if err := n.redo.Forget(server.RangeIDOf(p.keys)); err != nil {
		return err
	}
	for _, suffix := range []string{nextSuffix, oldSuffix, ""} { // -next: an unfinished takeover
		if err := removeFolder(p.dir + suffix); err != nil {
			return err
		}
	}
	n.log.Info("Removed a range that is no longer in the map: other nodes have its keys", "range", p.String())
	return nil
}

// isReplaced reports whether enough replicas of each current range that has keys of r report them
// as durable at a height.
func (n *Process) isReplaced(ctx context.Context, r avlstar.KeyRange, height int64) bool {
	nodes := n.nodes.Load()
	claims := map[dsm.NodeID][]dsm.Claim{dsm.NodeID(n.ID()): n.Claims()}
	for i := range nodes.Ranges.Len() {
		s := nodes.Ranges.Shard(i)
		if !s.Range.Overlaps(r) {
			continue
		}
		have := 0
		for _, node := range s.Replicas {
			if _, asked := claims[node]; !asked {
				// A node without an answer does not count.
				claims[node], _ = askClaims(ctx, n.dialer, nodes.Addresses[node])
			}
			if slices.ContainsFunc(claims[node], func(c dsm.Claim) bool { return c.Range.Equal(s.Range) && c.Durable >= height }) {
				have++
			}
		}
		// Files that nobody has signed may differ. If two of them each name only the other node,
		// each node sees the other's retired copy: then one other node is not enough.
		few := nodes.Version > 0 || slices.Contains(s.Replicas, dsm.NodeID(n.ID()))
		if have < enough && (!few || have < len(s.Replicas)) {
			return false
		}
	}
	return true
}

// itself is a connection of the node to itself: its other ranges can have the keys of a new one.
type itself struct{ n *Process }

var _ transport.Conn = itself{}

func (i itself) Remote() transport.Address { return transport.Address{ID: i.n.ID()} }
func (i itself) ChainID() string           { return i.n.genesis.ChainID }
func (i itself) Done() <-chan struct{}     { return i.n.ctx.Done() }
func (i itself) Err() error                { return i.n.ctx.Err() }
func (i itself) Close() error              { return nil }

func (i itself) Call(ctx context.Context, c transport.Call) ([]byte, error) {
	return i.n.handler.Load().Serve(ctx, transport.Request{Peer: i.n.ID(), Method: c.Method, Body: c.Body})
}
