package rangestore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/pages"
)

// Load rebuilds the tree of the durable state, without its pages, and verifies it: from its page
// list or, if there is none, in one pass over its leaves. After such a pass up to a few thousand
// leaves near each edge are in memory regardless of the budget. ok is false if there is no state.
// The caller releases p. progress is called from time to time with the number of leaves read so
// far. Errors: that of ctx; ErrOther; storage.ErrCorrupt; read errors.
func (s *Store) Load(ctx context.Context, progress func(leaves uint64)) (height int64, p *avlstar.Partial, ok bool, err error) {
	meta, e, ok, err := s.state()
	if !ok || err != nil {
		return 0, nil, false, err
	}
	boundary, err := avlstar.DecodeMultiproof(e.boundary)
	if err != nil {
		return 0, nil, false, s.corrupt(err)
	}
	if p = s.fromPageList(meta, e, boundary); p != nil {
		s.list.Begin(true)
		return meta.Height, p, true, nil
	}
	s.list.Begin(false)
	p, err = avlstar.FromRangePaged(e.commitment, s.keys, boundary, s.paging(), pages.Interruptible(ctx, s.zone.Scan(), progress))
	switch {
	case errors.Is(err, avlstar.ErrOtherState):
		return 0, nil, false, s.corrupt(err)
	case err != nil:
		return 0, nil, false, err
	}
	return meta.Height, p, true, nil
}

// fromPageList rebuilds the tree from its page list. It returns nil if the state that meta
// describes has none.
func (s *Store) fromPageList(meta storage.Meta, e extra, boundary *avlstar.Multiproof) *avlstar.Partial {
	_, stubs, err := pages.ReadPageList(s.zone, meta.Height)
	if err != nil {
		s.log.Info("The range has no page list that can be used, so all leaves are read", "folder", s.dir, "height", meta.Height, "err", err)
		return nil
	}
	p, err := avlstar.FromRangePageList(e.commitment, s.keys, boundary, s.paging(), stubs)
	if err != nil {
		s.log.Error("The page list of the range cannot be used, so all leaves are read", "folder", s.dir, "height", meta.Height, "err", err)
		return nil
	}
	return p
}

// runBytes is the approximate size of the runs that Create writes.
const runBytes = 1 << 20

// Create replaces the state by that of another height, which is durable when Create returns. c
// commits to the state, boundary is its boundary proof (avlstar.Version.Boundary), and leaves
// yields the leaves in the range, as avlstar.Partial.Leaves does. Versions that were loaded before
// can no longer read their pages. After an error there is no state. Errors: avlstar.ErrOtherState
// if c does not commit to the leaves; that which leaves yields, as it is; disk errors.
func (s *Store) Create(height int64, c avlstar.Commitment, boundary []byte, leaves iter.Seq2[avlstar.Leaf, error]) error {
	restore, err := s.zone.BeginRestore(nil)
	if err != nil {
		return err
	}
	if err := s.create(restore, height, c, boundary, leaves); err != nil {
		return errors.Join(err, restore.Abort())
	}
	return nil
}

func (s *Store) create(restore *storage.Restore, height int64, c avlstar.Commitment, boundary []byte, leaves iter.Seq2[avlstar.Leaf, error]) error {
	w := runs{restore: restore}
	if err := s.verify(c, boundary, w.written(leaves)); err != nil {
		return err
	}
	if err := w.flush(); err != nil {
		return err
	}
	return restore.Commit(s.meta(height, c, boundary))
}

// verify returns avlstar.ErrOtherState if c does not commit to the leaves of the range. It builds
// their tree, of which only the nodes above pages are in memory.
func (s *Store) verify(c avlstar.Commitment, boundary []byte, leaves iter.Seq2[avlstar.Leaf, error]) error {
	proof, err := avlstar.DecodeMultiproof(boundary)
	if err != nil {
		return fmt.Errorf("state folder %s: create: %w: boundary proof: %w", s.dir, avlstar.ErrOtherState, err)
	}
	p, err := avlstar.FromRangePaged(c, s.keys, proof, avlstar.Paging{}, leaves)
	if err != nil {
		return err
	}
	p.Release()
	return nil
}

// runs writes leaves as the runs of a restore.
type runs struct {
	restore *storage.Restore
	n       uint64
	height  uint8  // of the first leaf
	records []byte // of the current run
}

// written yields leaves and writes those that were accepted. A failure to write is yielded as an
// error.
func (w *runs) written(leaves iter.Seq2[avlstar.Leaf, error]) iter.Seq2[avlstar.Leaf, error] {
	return func(yield func(avlstar.Leaf, error) bool) {
		for l, err := range leaves {
			if !yield(l, err) || err != nil {
				return
			}
			if len(w.records) == 0 {
				w.height = l.Height
			}
			if w.records = record.Append(w.records, l); len(w.records) < runBytes {
				continue
			}
			if err := w.flush(); err != nil {
				yield(avlstar.Leaf{}, err)
				return
			}
		}
	}
}

// flush writes the current run unless it is empty.
func (w *runs) flush() error {
	if len(w.records) == 0 {
		return nil
	}
	id := storage.RunID(binary.BigEndian.AppendUint64(nil, w.n))
	if err := w.restore.Add(id, w.height, w.records); err != nil {
		return err
	}
	w.n, w.records = w.n+1, w.records[:0]
	return nil
}
