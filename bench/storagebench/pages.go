package storagebench

import (
	"fmt"
	"iter"

	"github.com/starling-kv/starling/avlstar"
	statepages "github.com/starling-kv/starling/storage/pages"
)

// pages is the state of a node with its leaves on disk: only the tree above the pages is in memory.
//
//	key ──tree──▶ page: [first, after), hash ──▶ cache ──miss──▶ disk: the key's record, or the whole page, verified
type pages struct {
	statepages.Pages
	tree  *avlstar.Version // nil until it is read
	byKey avlstar.Records  // records of the open files; nil: accounts are read from pages
}

var _ avlstar.Records = (*pages)(nil)

// Record implements avlstar.Records.
func (p *pages) Record(s avlstar.Subtree, key []byte) ([]byte, bool, error) {
	if p.byKey == nil {
		return nil, false, nil
	}
	return p.byKey.Record(s, key)
}

// Release implements avlstar.Records.
func (p *pages) Release() {}

// load reads the tree, once, from all leaves of the state on disk.
func (p *pages) load(d *model, leaves iter.Seq2[avlstar.Leaf, error]) error {
	if p.tree != nil {
		return nil
	}
	v, err := avlstar.FromLeavesPaged(avlstar.DefaultChunkBytes, avlstar.Paging{Pages: &p.Pages, Budget: func() int64 { return 0 }}, leaves)
	if err != nil {
		return err
	}
	if hash := v.AppHash(); string(hash[:]) != string(d.AppHash) {
		return fmt.Errorf("the state on disk has the app hash %s, the chain has %x", hash, d.AppHash)
	}
	v.SetRecords(p)
	p.tree = v
	return nil
}

// upper returns the memory of the tree above the pages, in bytes.
func (p *pages) upper() int64 {
	m := p.tree.Memory()
	return int64(m.NodeBytes + m.LeafBytes)
}

func (p *pages) account(key []byte, use func([]byte) error) error {
	value, _, err := p.tree.ByKey().View(key)
	if err != nil {
		return err
	}
	return use(value)
}
