package storage

import (
	"errors"
	"fmt"
	"iter"

	"github.com/cockroachdb/pebble/v2"

	"github.com/starling-kv/starling/avlstar/record"
)

// Level is one level of the zone's LSM tree.
type Level struct {
	Tables int
	Bytes  uint64
}

// Levels returns the levels of the zone's LSM tree, newest data first.
func (s *Zone) Levels() []Level {
	if !s.users.enter() {
		return nil
	}
	defer s.users.leave()
	var levels []Level
	for _, l := range s.db.Metrics().Levels {
		levels = append(levels, Level{int(l.TablesCount), uint64(max(l.TablesSize, 0))})
	}
	return levels
}

// EstimateKeys estimates the number of keys in the durable state. Keys overwritten or deleted since
// the last compaction may be counted more than once.
func (s *Zone) EstimateKeys() (uint64, error) {
	if !s.users.enter() {
		return 0, s.closedErr("count keys")
	}
	defer s.users.leave()
	if n, unsettled, err := s.unsettledKeys(); unsettled {
		return n, s.readErr(err)
	}
	levels, err := s.db.SSTables(pebble.WithProperties())
	if err != nil {
		return 0, s.readErr(err)
	}
	var entries, obsolete uint64
	for _, level := range levels {
		for _, t := range level {
			if t.Properties != nil {
				entries += t.Properties.NumEntries
				// A deletion also obsoletes the leaf that it deletes; an operand is not a key.
				obsolete += 2*t.Properties.NumDeletions + t.Properties.NumMergeOperands
			}
		}
	}
	obsolete++ // meta
	return entries - min(entries, obsolete), nil
}

// unsettledKeys estimates the number of keys of a restored state that is not settled; false if
// there is none.
func (s *Zone) unsettledKeys() (uint64, bool, error) {
	s.mu.Lock()
	u := s.mu.unsettled
	s.mu.Unlock()
	if u == nil {
		return 0, false, nil
	}
	g := s.generations.newest() // keeps its files until release
	if g == nil {
		return 0, false, nil
	}
	defer func() { _ = g.release() }() // no error: there is no iterator
	if g.reader != nil {
		return 0, false, nil // settled meanwhile
	}
	n, err := g.set.keys()
	return n, true, err
}

// Meta describes the state of the pin.
func (p *Pin) Meta() (Meta, error) {
	if p.closed.Load() {
		return Meta{}, fmt.Errorf("snapshot folder %s: %w", p.folder.Dir, ErrClosed)
	}
	m, ok, err := readMeta(p.g.reader)
	switch {
	case err == nil && !ok:
		return Meta{}, p.folder.Corrupt(errors.New("it contains no state"))
	case errors.Is(err, errMetaForm):
		return Meta{}, p.folder.Corrupt(err)
	}
	return m, p.folder.Err("read", err)
}

// Scan yields all leaves of the pin, like Zone.Scan. The pin must not be closed meanwhile.
func (p *Pin) Scan() iter.Seq2[record.Leaf, error] {
	return func(yield func(record.Leaf, error) bool) {
		if p.closed.Load() {
			yield(record.Leaf{}, fmt.Errorf("snapshot folder %s: %w", p.folder.Dir, ErrClosed))
			return
		}
		p.g.refs.Add(1) // scan releases it
		stopped := false
		err := scan(p.g, p.g.parts(nil), func(l record.Leaf) bool {
			stopped = !yield(l, nil)
			return !stopped
		})
		if err != nil && !stopped {
			yield(record.Leaf{}, p.readErr(err))
		}
	}
}
