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
// until a block writes them. Like Scan, it reads ahead in parallel. An error is yielded last.
func (s *Zone) PageList() iter.Seq2[record.Leaf, error] {
	return s.inParts("read the page list", func(g *generation) ([]section, error) {
		if g.reader == nil { // the state was restored
			return nil, nil
		}
		cuts, err := s.cuts(kindPageList, listSegmentBytes)
		return partsBetween(cuts, g.pageListPart), err
	})
}

func pageListRange() *pebble.IterOptions { return kindRange(kindPageList, nil, nil) }

// pageListPart returns the records of the page list with keys in [first, after).
func (g *generation) pageListPart(first, after []byte) section {
	return func(take func(key, value []byte, height uint8) bool) error {
		it, err := g.iterate(kindPageList, first, after)
		if err != nil {
			return err
		}
		for it.First(); it.Valid(); it.Next() {
			value, err := it.ValueAndErr()
			if err != nil {
				return errors.Join(err, it.Close())
			}
			if !take(it.Key()[1:], value, 0) {
				break
			}
		}
		return it.Close()
	}
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
