package store

import (
	"bytes"

	"github.com/tidwall/btree"

	"github.com/starling-kv/starling/avlstar"
)

// pending is a set of changes, ordered by key, that are not in a version yet. A nil value deletes
// the key; other values are in stored form. The zero value is an empty set.
type pending struct {
	tree *btree.BTreeG[avlstar.Change] // nil: empty
}

func lessKey(a, b avlstar.Change) bool { return bytes.Compare(a.Key, b.Key) < 0 }

func (p *pending) set(c avlstar.Change) {
	if p.tree == nil {
		p.tree = btree.NewBTreeGOptions(lessKey, btree.Options{NoLocks: true})
	}
	p.tree.Set(c)
}

func (p *pending) get(key []byte) (avlstar.Change, bool) {
	if p.tree == nil {
		return avlstar.Change{}, false
	}
	return p.tree.Get(avlstar.Change{Key: key})
}

func (p *pending) empty() bool { return p.tree == nil || p.tree.Len() == 0 }

// changes returns all changes in key order.
func (p *pending) changes() []avlstar.Change {
	if p.empty() {
		return nil
	}
	return p.tree.Items()
}

// copy returns a snapshot of p that later changes of p do not affect.
func (p *pending) copy() pending {
	if p.empty() {
		return pending{}
	}
	return pending{p.tree.Copy()}
}
