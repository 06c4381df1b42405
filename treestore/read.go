package treestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/storage"
)

// ErrNotTheState: what can be read from the disk is not what was stored.
var ErrNotTheState = errors.New("it is not what was stored")

// Interruptible yields all leaves until ctx ends, whose error is then the last thing that it
// yields. progress is called now and then, and at the end, with the number of leaves so far.
func Interruptible(ctx context.Context, leaves iter.Seq2[record.Leaf, error], progress func(done uint64)) iter.Seq2[record.Leaf, error] {
	return func(yield func(record.Leaf, error) bool) {
		done := uint64(0)
		for leaf, err := range leaves {
			if done%(1<<12) == 0 && err == nil {
				progress(done)
				err = ctx.Err()
			}
			if !yield(leaf, err) || err != nil {
				return
			}
			done++
		}
		progress(done)
	}
}

// Recompute makes the tree of the leaves of a stored state, of which only what lies above pages
// stays in memory, and compares its app hash with the one it was stored with: ErrNotTheState. The
// pages cannot be read; the caller releases the version.
func Recompute(ctx context.Context, meta storage.Meta, leaves iter.Seq2[record.Leaf, error], progress func(done uint64)) (*avlstar.Version, error) {
	return recompute(ctx, meta, avlstar.Paging{}, leaves, progress)
}

// Read makes the tree of the state on disk; what lies below its upper tree stays there and is read
// as it is asked for. The store must have a cache. Errors: storage.ErrCorrupt, and those of
// reading.
func (s *Store) Read(ctx context.Context, progress func(done uint64)) (*avlstar.Version, error) {
	meta, ok := s.zone.Meta()
	if !ok {
		return nil, errors.New("there is no state")
	}
	v, err := recompute(ctx, meta, s.pages.paging(), s.zone.Scan(), progress)
	if err != nil {
		return nil, s.unlikeStored(err)
	}
	s.pages.account(v)
	return v, nil
}

func (s *Store) unlikeStored(err error) error {
	if errors.Is(err, ErrNotTheState) {
		return Damaged(err)
	}
	return err
}

func recompute(
	ctx context.Context, meta storage.Meta, paging avlstar.Paging, leaves iter.Seq2[record.Leaf, error], progress func(done uint64),
) (*avlstar.Version, error) {
	v, err := assemble(ctx, meta.ChunkBytes, paging, leaves, progress)
	if err != nil {
		return nil, err
	}
	if hash := v.AppHash(); !bytes.Equal(hash[:], meta.AppHash) {
		v.Release()
		return nil, fmt.Errorf("%w: the state of height %d has app hash %s, it was %X when it was stored", ErrNotTheState, meta.Height, hash, meta.AppHash)
	}
	return v, nil
}

// assemble makes a tree of leaves: ErrNotTheState where they form none.
func assemble(
	ctx context.Context, chunkBytes uint64, paging avlstar.Paging, leaves iter.Seq2[record.Leaf, error], progress func(done uint64),
) (*avlstar.Version, error) {
	var unread error
	v, err := avlstar.FromLeavesPaged(chunkBytes, paging, func(yield func(avlstar.Leaf, error) bool) {
		for leaf, err := range Interruptible(ctx, leaves, progress) {
			unread = err
			if !yield(leaf, err) {
				return
			}
		}
	})
	switch {
	case unread != nil:
		return nil, unread
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrNotTheState, err)
	}
	return v, nil
}
