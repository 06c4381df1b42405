package storage

import (
	"errors"
	"iter"

	"github.com/cockroachdb/pebble/v2"

	"github.com/starling-kv/starling/avlstar/record"
)

// Outline yields the outline records of the durable state in key order: what the owners of blocks
// wrote (Owner.Take), as Key and Value, valid until the next iteration. To the zone they are opaque.
// They are part of pins, and not of a restored state: it has none until a block writes them. An
// error is yielded last.
func (s *Zone) Outline() iter.Seq2[record.Leaf, error] {
	return func(yield func(record.Leaf, error) bool) {
		if !s.users.enter() {
			yield(record.Leaf{}, s.closedErr("read the outline"))
			return
		}
		defer s.users.leave()
		g := s.generations.newest()
		if g == nil {
			return
		}
		var err error
		if g.reader != nil { // otherwise the state was restored
			err = g.outline(func(l record.Leaf) bool { return yield(l, nil) })
		}
		if err := errors.Join(err, g.release()); err != nil && !errors.Is(err, errStopped) {
			yield(record.Leaf{}, s.readErr(err))
		}
	}
}

func outlineRange() *pebble.IterOptions {
	return &pebble.IterOptions{LowerBound: []byte{kindOutline}, UpperBound: []byte{kindOutline + 1}}
}

// errStopped: the caller of an iterator has stopped it.
var errStopped = errors.New("stopped")

// outline yields the outline records. It returns errStopped if yield returned false.
func (g *generation) outline(yield func(record.Leaf) bool) error {
	it, err := g.reader.NewIter(outlineRange())
	if err != nil {
		return err
	}
	for it.First(); it.Valid(); it.Next() {
		value, err := it.ValueAndErr()
		if err != nil {
			return errors.Join(err, it.Close())
		}
		if !yield(record.Leaf{Key: it.Key()[1:], Value: value}) {
			return errors.Join(errStopped, it.Close())
		}
	}
	return it.Close()
}
