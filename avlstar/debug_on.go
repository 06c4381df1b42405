//go:build avlstardebug

package avlstar

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"slices"
)

// debug enables three checks (go test -tags avlstardebug): every version is checked completely when
// it is made, every node of the memory must be accounted for, and freed memory is overwritten, so
// that a use after free is noticed.
const debug = true

const poison = 0xdddd_dddd_dddd_dddd

// check panics unless v satisfies all invariants, and every node in memory belongs to v or is held
// by an older version. The caller holds t.mu.
func (t *tree) check(v *Version) {
	c := checker{v: v}
	c.walk(v.root, v.top, nil, nil)
	if !v.partial {
		c.must(c.leaves == v.leaves, "%d leaves, the version says %d", c.leaves, v.leaves)
		c.must(c.upper == v.upper, "%d upper nodes, the version says %d", c.upper, v.upper)
	}
	for i, a := range t.mu.alive[:len(t.mu.alive)-1] {
		next := t.mu.alive[i+1].version
		c.must(t.mu.bytesOf(slices.Concat(a.held...)) == a.version.HeldBytes(), "version %d: wrong number of held bytes", a.version.epoch)
		for _, d := range slices.Concat(a.held...) {
			c.must(d.born <= a.version.epoch, "node of epoch %d held by version %d", d.born, a.version.epoch)
			if d.n.isLeaf() {
				c.must(t.mu.recordEpoch(d.n) == d.born, "a held leaf is another one now")
				c.heldLeaves++
			} else {
				c.must(t.mu.image(d.n).epoch() == d.born, "a held node is another one now")
				c.heldInner++
			}
		}
		c.must(next.epoch > a.version.epoch, "versions out of order")
	}
	c.must(t.mu.nodes == c.inner+c.heldInner, "%d inner nodes in memory, %d in the latest version and %d held", t.mu.nodes, c.inner, c.heldInner)
	c.must(t.mu.leaves == c.leaves+c.standIns+c.heldLeaves, "%d leaves in memory, %d and %d stand-ins in the latest version and %d held",
		t.mu.leaves, c.leaves, c.standIns, c.heldLeaves)
}

type checker struct {
	v                                                     *Version
	inner, leaves, standIns, upper, heldInner, heldLeaves uint64
}

func (c *checker) must(ok bool, format string, args ...any) {
	if !ok {
		panic(fmt.Sprintf("avlstar: version %d: %s", c.v.epoch, fmt.Sprintf(format, args...)))
	}
}

// walk checks the subtree n, whose keys are in [low, high), against its stub s in its parent.
func (c *checker) walk(n ref, s Stub, low, high []byte) {
	v := c.v
	switch {
	case n == 0:
		c.must(v.partial || s == emptyStub, "a stub in a complete tree")
	case n.isLeaf():
		key, value := v.leaf(n)
		c.must(bytes.Compare(low, key) <= 0 && (high == nil || bytes.Compare(key, high) < 0), "leaf %x out of order", key)
		hash := hashLeaf(sha256.Sum256(key), sha256.Sum256(value))
		c.must(s == Stub{Stat{0, RecordBytes(len(key), len(value))}, hash}, "leaf %x: its parent says %v", key, s)
		c.must(v.recordEpoch(n) <= v.epoch, "leaf %x of epoch %d", key, v.recordEpoch(n))
		c.leaves++
	default:
		l, i := v.link(n), v.image(n)
		key := v.keyOf(n)
		c.must(l.prefix == prefixOf(key), "prefix of %x", key)
		c.must(i.epoch() <= v.epoch, "node %x of epoch %d", key, i.epoch())
		c.must(i.ownHeight() == s.Height && i.total() == s.Bytes && i.sum() == s.Hash, "node %x: its parent says %v", key, s)
		c.must(max(i.height(left), i.height(right))-min(i.height(left), i.height(right)) <= 1, "node %x out of balance", key)
		if first := v.end(l.child[right], left); first != 0 {
			c.must(bytes.Equal(v.key(first), key), "node %x does not have the least key of its right subtree", key)
			c.must(first == i.leaf(), "node %x refers to another leaf", key)
		} else {
			c.must(v.standIn(i.leaf()), "node %x refers to a leaf that is not in this version", key)
			c.standIns++
		}
		c.must(*i.keyHash() == sha256.Sum256(key), "hash of key %x", key)
		if !isSmall(s.Stat, v.chunkBytes) {
			c.upper++
		}
		c.inner++
		c.walk(l.child[left], i.stub(left), low, key)
		c.walk(l.child[right], i.stub(right), key, high)
	}
}
