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
	"github.com/starling-kv/starling/storage/pages"
)

// ErrNotTheState: the leaves on disk differ from those that were stored.
var ErrNotTheState = errors.New("it differs from what was stored")

// Recompute rebuilds the tree from the leaves of a stored state and compares its app hash with the
// stored one. It fails with ErrNotTheState if they differ. Only the part above the pages stays in
// memory, and pages cannot be read. The caller must release the version.
func Recompute(ctx context.Context, meta storage.Meta, leaves iter.Seq2[record.Leaf, error], progress func(done uint64)) (*avlstar.Version, error) {
	v, err := assemble(ctx, meta.ChunkBytes, &avlstar.Paging{}, leaves, progress)
	if err != nil {
		return nil, err
	}
	return same(v, meta)
}

// Read rebuilds the tree of the state on disk. progress is called from time to time with the number
// of leaves read so far. Errors: storage.ErrCorrupt with a remedy, and read errors.
func (s *Store) Read(ctx context.Context, progress func(done uint64)) (*avlstar.Version, error) {
	meta, ok := s.zone.Meta()
	if !ok {
		return nil, errors.New("there is no state")
	}
	return s.read(ctx, meta, progress)
}

func (s *Store) read(ctx context.Context, meta storage.Meta, progress func(done uint64)) (*avlstar.Version, error) {
	v, err := s.build(ctx, meta.ChunkBytes, progress)
	if err != nil {
		return nil, err
	}
	v, err = same(v, meta)
	return v, unlikeStored(err)
}

// fromPageList rebuilds the tree from its page list. It returns nil if the store has no cache, or
// if there is no page list of the state that meta describes.
func (s *Store) fromPageList(meta storage.Meta) *avlstar.Version {
	if s.pages == nil {
		return nil
	}
	leaves, stubs, err := pages.ReadPageList(s.zone, meta.Height)
	if err != nil {
		s.log.Info("The state has no page list that can be used, so all leaves are read", "height", meta.Height, "err", err)
		return nil
	}
	v, err := avlstar.FromPageList(meta.ChunkBytes, leaves, s.paging(), stubs)
	if err == nil {
		v, err = same(v, meta)
	}
	if err != nil {
		s.log.Error("The page list of the state cannot be used, so all leaves are read", "height", meta.Height, "err", err)
		return nil
	}
	if !s.inMemory {
		account(s.pages.Cache, v)
	}
	return v
}

// build rebuilds the tree from the leaves on disk: completely in memory or, if pages leave memory,
// only the part above them. Errors: storage.ErrCorrupt with a remedy, and read errors.
func (s *Store) build(ctx context.Context, chunkBytes uint64, progress func(done uint64)) (*avlstar.Version, error) {
	var paging *avlstar.Paging
	if !s.inMemory {
		p := s.paging()
		paging = &p
	}
	v, err := assemble(ctx, chunkBytes, paging, s.zone.Scan(), progress)
	if err != nil {
		return nil, unlikeStored(err)
	}
	if !s.inMemory {
		account(s.pages.Cache, v)
	}
	return v, nil
}

func unlikeStored(err error) error {
	if errors.Is(err, ErrNotTheState) {
		return Damaged(err)
	}
	return err
}

// same returns v if it is the state that meta describes. Otherwise it releases v and fails with
// ErrNotTheState.
func same(v *avlstar.Version, meta storage.Meta) (*avlstar.Version, error) {
	if hash := v.AppHash(); !bytes.Equal(hash[:], meta.AppHash) {
		v.Release()
		return nil, fmt.Errorf("%w: the state at height %d has app hash %s, and had %X when it was stored", ErrNotTheState, meta.Height, hash, meta.AppHash)
	}
	return v, nil
}

// assemble builds a tree from leaves. It fails with ErrNotTheState if they do not form one. Without
// paging, the whole tree stays in memory.
func assemble(
	ctx context.Context, chunkBytes uint64, paging *avlstar.Paging, leaves iter.Seq2[record.Leaf, error], progress func(done uint64),
) (v *avlstar.Version, err error) {
	var unread error
	all := func(yield func(avlstar.Leaf, error) bool) {
		for leaf, err := range pages.Interruptible(ctx, leaves, progress) {
			unread = err
			if !yield(leaf, err) {
				return
			}
		}
	}
	if paging == nil {
		v, err = avlstar.FromLeaves(chunkBytes, all)
	} else {
		v, err = avlstar.FromLeavesPaged(chunkBytes, *paging, all)
	}
	switch {
	case unread != nil:
		return nil, unread
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrNotTheState, err)
	}
	return v, nil
}
