package storagebench

import (
	"errors"
	"fmt"
	"iter"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/storage/sgc"
)

// pages is the state as a node has it whose leaves are on disk: a tree of which only what lies above pages is in memory.
//
//	key ──tree──▶ page: [first, after), hash ──▶ cache ──miss──▶ disk, verified
type pages struct {
	tree  *avlstar.Version // nil: not read yet
	cache *sgc.Cache
	// read hands the records of [first, after) to accept, whose they are during the call only.
	read func(first, after []byte, limit uint64, accept func(records []byte) bool) error
}

// load reads the tree, once, from all leaves of the state on disk.
func (p *pages) load(d *model, leaves iter.Seq2[avlstar.Leaf, error]) error {
	if p.tree != nil {
		return nil
	}
	v, err := avlstar.FromLeavesPaged(avlstar.DefaultChunkBytes, avlstar.Paging{Pages: p, Budget: func() int64 { return 0 }}, leaves)
	if err != nil {
		return err
	}
	if hash := v.AppHash(); string(hash[:]) != string(d.AppHash) {
		return fmt.Errorf("the state on disk has the app hash %s, the chain %x", hash, d.AppHash)
	}
	p.tree = v
	return nil
}

// upper is the memory of what lies above the pages.
func (p *pages) upper() int64 {
	m := p.tree.Memory()
	return int64(m.NodeBytes + m.LeafBytes)
}

// Page implements avlstar.Pages, as package node does.
func (p *pages) Page(s avlstar.Subtree) (*avlstar.Page, error) {
	if cached, ok := p.cache.Get(sgc.State, s.Hash[:]); ok {
		return cached.(*avlstar.Page), nil
	}
	var page *avlstar.Page
	var refused error
	err := p.read(s.First, s.After, s.Bytes, func(records []byte) bool {
		page, refused = avlstar.VerifyPage(s.Stub, records)
		return refused == nil
	})
	if err != nil {
		return nil, errors.Join(err, refused)
	}
	p.cache.Put(sgc.State, s.Hash[:], page.Compact(), page.Size())
	return page, nil
}

func (p *pages) account(key []byte, use func([]byte) error) error {
	value, ok := p.tree.View(key)
	if err := p.tree.Err(); !ok && err != nil {
		return err
	}
	return use(value)
}
