package rangemap

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/transport"
)

// This file plans changes of a map. Each change has two steps, each of them a version of the map:
//
//	before             during                                        after
//	[, )  at A, B      [, )  at A, B;  next [, m) at A, B; [m, ) …   [, m) at A, B; [m, ) at A, B
//	[, m) at A, B      [, m) at A, B, C;  leaving: A                 [, m) at B, C
//
// During the change, new replicas are filled and kept up to date, and the old ones still serve.

// ErrChanging: the map has a change that is not finished.
var ErrChanging = errors.New("the map has a change that is not finished: use `starlingd storage ranges continue`, or abort")

// ErrNoChange: the map has no change that could be finished or aborted.
var ErrNoChange = errors.New("the map has no change")

// edited returns a copy of a map with the next version.
func edited(m *config.StorageNodes) *config.StorageNodes {
	c := *m
	c.Version++
	c.Addresses = maps.Clone(m.Addresses)
	return &c
}

// IsChanging reports whether a map has a change that Finish or Abort ends.
func IsChanging(m *config.StorageNodes) bool { return len(m.Next)+len(m.Leaving) > 0 }

// begun returns a copy of a map for a new change.
func begun(m *config.StorageNodes) (*config.StorageNodes, error) {
	if m.Version == 0 {
		return nil, errors.New("the map is not signed: sign it with `starlingd storage ranges sign`, and copy it into the home of every node once")
	}
	if IsChanging(m) {
		return nil, ErrChanging
	}
	return edited(m), nil
}

// NameValidators replaces the nodes whose updates have priority. It is a whole change.
func NameValidators(m *config.StorageNodes, ids []string) (*config.StorageNodes, error) {
	e, err := begun(m)
	if err != nil {
		return nil, err
	}
	return e, e.NameValidators(ids)
}

// shards returns the current ranges, with replica lists that may be changed.
func shards(m *config.StorageNodes) []dsm.Placement {
	all := make([]dsm.Placement, m.Ranges.Len())
	for i := range all {
		all[i] = m.Ranges.Shard(i)
		all[i].Replicas = slices.Clone(all[i].Replicas)
	}
	return all
}

// begunAt is begun, and returns the number of the range that begins with a key.
func begunAt(m *config.StorageNodes, first []byte) (*config.StorageNodes, int, error) {
	e, err := begun(m)
	if err != nil {
		return nil, 0, err
	}
	i := m.Ranges.Index(first)
	if r := m.Ranges.Shard(i).Range; !bytes.Equal(r.First, first) {
		return nil, 0, fmt.Errorf("no range begins with %q: it is inside range %v", first, r)
	}
	return e, i, nil
}

// Split begins to divide the range with a key, at that key. The same nodes keep both parts.
func Split(m *config.StorageNodes, key []byte) (*config.StorageNodes, error) {
	e, err := begun(m)
	if err != nil {
		return nil, err
	}
	old := m.Ranges.Shard(m.Ranges.Index(key))
	if bytes.Equal(old.Range.First, key) {
		return nil, fmt.Errorf("a range begins with %q already", key)
	}
	e.Next = []dsm.Placement{
		{Range: avlstar.KeyRange{First: old.Range.First, After: key}, Replicas: old.Replicas},
		{Range: avlstar.KeyRange{First: key, After: old.Range.After}, Replicas: old.Replicas},
	}
	return e, nil
}

// Merge begins to merge the range that begins with a key with the one before. The nodes of the
// lower range keep both.
func Merge(m *config.StorageNodes, first []byte) (*config.StorageNodes, error) {
	e, i, err := begunAt(m, first)
	if err != nil {
		return nil, err
	}
	if i == 0 {
		return nil, errors.New("the first range has none before it: name the upper one of the two")
	}
	low, high := m.Ranges.Shard(i-1), m.Ranges.Shard(i)
	e.Next = []dsm.Placement{{Range: avlstar.KeyRange{First: low.Range.First, After: high.Range.After}, Replicas: low.Replicas}}
	return e, nil
}

// Move begins to move a replica of the range that begins with a key from one node to another. An
// empty from only adds a replica; an empty to only removes one, of which at least least must stay.
func Move(m *config.StorageNodes, first []byte, from dsm.NodeID, to transport.Address, least int) (*config.StorageNodes, error) {
	e, i, err := begunAt(m, first)
	if err != nil {
		return nil, err
	}
	all := shards(m)
	r := &all[i]
	if from != "" && !slices.Contains(r.Replicas, from) {
		return nil, fmt.Errorf("node %s does not keep range %v", from, r.Range)
	}
	if to.ID != "" {
		node := dsm.NodeID(to.ID)
		if slices.Contains(r.Replicas, node) {
			return nil, fmt.Errorf("node %s keeps range %v already", node, r.Range)
		}
		if known, is := e.Addresses[node]; is && known != to {
			return nil, fmt.Errorf("node %s has the address %s in the map, not %s", node, known.HostPort, to.HostPort)
		}
		e.Addresses[node] = to
		r.Replicas = append(r.Replicas, node)
	}
	if from != "" {
		if left := len(r.Replicas) - 1; left < max(least, 1) {
			return nil, fmt.Errorf("range %v would have %d replicas, it needs %d: add one first with `starlingd storage ranges replicate`", r.Range, left, max(least, 1))
		}
		e.Leaving = []dsm.Placement{{Range: r.Range, Replicas: []dsm.NodeID{from}}}
	}
	e.Ranges, err = dsm.NewRanges(all)
	return e, err
}

// Finish returns the map after a change: next ranges replace those that they overlap, and leaving
// replicas are gone.
func Finish(m *config.StorageNodes) (*config.StorageNodes, error) {
	if !IsChanging(m) {
		return nil, fmt.Errorf("%w to finish", ErrNoChange)
	}
	all := slices.DeleteFunc(shards(m), func(s dsm.Placement) bool {
		return slices.ContainsFunc(m.Next, func(n dsm.Placement) bool { return n.Range.Overlaps(s.Range) })
	})
	for _, l := range m.Leaving {
		for i := range all {
			if all[i].Range.Equal(l.Range) {
				all[i].Replicas = without(all[i].Replicas, l.Replicas)
			}
		}
	}
	ranges, err := dsm.NewRanges(append(all, m.Next...))
	if err != nil {
		return nil, err
	}
	return settled(edited(m), ranges), nil
}

// Abort returns the map without its change. Replicas that were added stay.
func Abort(m *config.StorageNodes) (*config.StorageNodes, error) {
	if !IsChanging(m) {
		return nil, fmt.Errorf("%w to abort", ErrNoChange)
	}
	return settled(edited(m), m.Ranges), nil
}

// without returns the nodes that are not among others.
func without(nodes, others []dsm.NodeID) []dsm.NodeID {
	return slices.DeleteFunc(slices.Clone(nodes), func(n dsm.NodeID) bool { return slices.Contains(others, n) })
}

// settled sets the ranges of an edited map without a change, and forgets nodes that keep none.
func settled(e *config.StorageNodes, ranges *dsm.Ranges) *config.StorageNodes {
	e.Ranges, e.Next, e.Leaving = ranges, nil, nil
	maps.DeleteFunc(e.Addresses, func(n dsm.NodeID, _ transport.Address) bool { return len(ranges.Of(n)) == 0 })
	return e
}
