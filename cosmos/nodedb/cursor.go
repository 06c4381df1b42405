package nodedb

import (
	"bytes"
	"math"
	"slices"

	"github.com/starling-kv/starling/cosmos/iavlsync"
)

// cursors read nodes in the order of a walk: a node, its left subtree, its right subtree. IAVL
// numbers the new nodes of a version in this order, so most steps of a walk advance the iterator of
// a version by one. A read by key would search the database each time.
type cursors struct {
	*store
	open map[int64]*cursor // by version
	seen map[int64]int     // number of reads of a version without a cursor
	full []byte            // buffer for a key
}

// cursor is an iterator over the nodes of one version.
type cursor struct {
	it            Iterator
	found, missed int
}

const (
	maxCursors  = 64 // open at a time; each holds a few database blocks
	worthCursor = 4  // number of reads of a version before it gets a cursor
	maxSteps    = 16 // to the next node, over leaves and nodes of other trees
)

func newCursors(s *store) *cursors {
	return &cursors{store: s, open: map[int64]*cursor{}, seen: map[int64]int{}}
}

func (c *cursors) close() {
	for _, cur := range c.open {
		_ = cur.it.Close() // everything read is verified later, or read again
	}
}

// Node returns the node with a key, like store.Node.
func (c *cursors) Node(key []byte) (*iavlsync.Node, error) {
	if b := c.next(key); b != nil {
		version, _ := splitNodeKey(key)
		return DecodeNode(version, b)
	}
	return c.store.Node(key)
}

// next returns the record of a node if a cursor is close before it; otherwise nil: read it by key.
func (c *cursors) next(key []byte) []byte {
	version, _ := splitNodeKey(key)
	cur := c.open[version]
	if cur == nil {
		c.seen[version]++
		if c.seen[version] < worthCursor || len(c.open) == maxCursors {
			return nil
		}
		it, err := c.db.Iterator(c.key(kindNode, key), c.key(kindNode, nodeKey(version+1, 0)))
		if err != nil {
			return nil
		}
		cur = &cursor{it: it}
		c.open[version] = cur
	}
	c.full = append(append(append(c.full[:0], c.prefix...), kindNode), key...)
	for range maxSteps {
		if !cur.it.Valid() {
			break
		}
		order := bytes.Compare(cur.it.Key(), c.full)
		if order == 0 {
			cur.found++
			return slices.Clone(cur.it.Value())
		}
		if order > 0 {
			break
		}
		cur.it.Next()
	}
	if cur.missed++; cur.missed > worthCursor+cur.found/2 {
		_ = cur.it.Close() // see close
		delete(c.open, version)
		c.seen[version] = math.MinInt32 // never open another cursor: numbers do not follow the walk
	}
	return nil
}
