package storage

import (
	"errors"
	"iter"

	"github.com/cockroachdb/pebble/v2"

	"github.com/starling-kv/starling/avlstar/record"
)

// PageList yields the records of the page list of the durable state in key order: what the owners
// of blocks wrote (Owner.Take), as Key and Value, valid until the next iteration. To the zone they
// are opaque. A pin has them, but a rollback to it does not copy them. A restored state has none
// until a block writes them. An error is yielded last.
func (s *Zone) PageList() iter.Seq2[record.Leaf, error] {
	return func(yield func(record.Leaf, error) bool) {
		if !s.users.enter() {
			yield(record.Leaf{}, s.closedErr("read the page list"))
			return
		}
		defer s.users.leave()
		g := s.generations.newest()
		if g == nil {
			return
		}
		var err error
		stopped := false
		if g.reader != nil { // otherwise the state was restored
			err = g.pageList(func(l record.Leaf) bool {
				stopped = !yield(l, nil)
				return !stopped
			})
		}
		if err := errors.Join(err, g.release()); err != nil && !stopped {
			yield(record.Leaf{}, s.readErr(err))
		}
	}
}

func pageListRange() *pebble.IterOptions {
	return &pebble.IterOptions{LowerBound: []byte{kindPageList}, UpperBound: []byte{kindPageList + 1}}
}

// pageList yields the records of the page list until yield returns false.
func (g *generation) pageList(yield func(record.Leaf) bool) error {
	it, err := g.reader.NewIter(pageListRange())
	if err != nil {
		return err
	}
	for it.First(); it.Valid(); it.Next() {
		value, err := it.ValueAndErr()
		if err != nil {
			return errors.Join(err, it.Close())
		}
		if !yield(record.Leaf{Key: it.Key()[1:], Value: value}) {
			break
		}
	}
	return it.Close()
}

// partBytes is the approximate size of the batches that write a whole page list.
const partBytes = 4 << 20

// replacePageList replaces the page list by that of w, in several batches, before the batch of w's
// state. After a crash in between, no page list is of the height in meta. A page list that cannot
// be read is replaced, too.
func (s *Zone) replacePageList(w *waiting) error {
	it, err := s.db.NewIter(pageListRange())
	if err != nil {
		return err
	}
	// Usually there is none, and a deletion without effect would cause compactions.
	older := it.First() || it.Error() != nil
	_ = it.Close() // the same error
	batch := s.db.NewBatch()
	defer func() { _ = batch.Close() }() // it is empty, or has failed
	if older {
		if err := batch.DeleteRange([]byte{kindPageList}, []byte{kindPageList + 1}, nil); err != nil {
			return err
		}
	}
	for key, record := range w.eachPage {
		if err := setPage(batch, key, record); err != nil {
			return err
		}
		if batch.Len() < partBytes {
			continue
		}
		if err := batch.Commit(pebble.NoSync); err != nil {
			return err
		}
		batch.Reset()
	}
	return batch.Commit(pebble.NoSync)
}

// setPage adds a record of the page list to a batch; an empty one removes the record.
func setPage(batch *pebble.Batch, key, record []byte) error {
	at := append([]byte{kindPageList}, key...)
	if len(record) == 0 {
		return batch.Delete(at, nil)
	}
	return batch.Set(at, record, nil)
}
