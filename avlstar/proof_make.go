package avlstar

import (
	"bytes"
	"encoding/binary"
	"errors"

	"github.com/starling-kv/starling/avlstar/record"
)

// proveState returns the state operator for key, or nil in the empty tree. It has the bytes that
// CommitmentProof.Marshal would return (proof_codec.go), but is written directly from the tree's
// memory.
func (v *Version) proveState(key []byte) ([]byte, error) {
	if v.top == emptyStub {
		return nil, nil
	}
	var steps [maxSteps]step // on the stack
	p, err := v.path(key, steps[:0])
	if err != nil {
		return nil, err
	}
	if bytes.Equal(p.key, key) {
		return appendExistence(nil, 0x0a, p), nil
	}
	b := appendField(make([]byte, 0, 8192), 0x0a, key)
	if bytes.Compare(p.key, key) < 0 { // otherwise key is below all keys
		b = appendExistence(b, 0x12, p)
		if p, err = v.after(p, key); err != nil {
			return nil, err
		}
	}
	if p.key != nil {
		b = appendExistence(b, 0x1a, p)
	}
	return appendField(nil, 0x12, b), nil
}

// path is the path from the root to a leaf; key is nil if there is no leaf.
type path struct {
	key, value []byte
	steps      []step
}

// step leads from a node to its child on one side.
type step struct {
	page  *run // the page that contains the node; nil: the node is in the tree
	n     ref
	side  int
	image *image
}

// maxSteps is the number of steps of a path that need no allocation: a tree of 2^31 leaves is at
// most 44 high.
const maxSteps = 48

// path returns the path to the leaf at which a search for key ends. It uses the memory of steps.
func (v *Version) path(key []byte, steps []step) (path, error) {
	p := path{steps: steps}
	prefix := prefixOf(key)
	n := v.root
	for n.isInner() {
		l, i := v.link(n), v.image(n)
		prefetchNode(l, i) // the proof is made from the image
		side := right
		if v.less(key, prefix, n, l) {
			side = left
		}
		p.steps = append(p.steps, step{nil, n, side, i})
		n = l.child[side]
	}
	return v.complete(p, n, key, func(r *run, n ref) int {
		if bytes.Compare(key, r.leaf(int(n)).Key) < 0 {
			return left
		}
		return right
	})
}

// complete completes a path that has reached a leaf, or a stub, whose page it then descends. asked
// is the key that a MissingNodeError names.
func (v *Version) complete(p path, n ref, asked []byte, choose func(r *run, n ref) int) (path, error) {
	if n.isLeaf() {
		p.key, p.value = v.leaf(n)
		return p, nil
	}
	var last step
	if len(p.steps) > 0 {
		last = p.steps[len(p.steps)-1]
	}
	page, err := v.pageBelow(last.n, last.side)
	var missing *MissingNodeError
	switch {
	case errors.As(err, &missing):
		return path{}, &MissingNodeError{Node: missing.Node, Key: bytes.Clone(asked)}
	case err != nil:
		return path{}, err
	}
	r := page.nodes()
	return descendPage(p, r, r.root.n, choose), nil
}

// descendPage continues a path from node n of a page to a leaf.
func descendPage(p path, r *run, n ref, choose func(r *run, n ref) int) path {
	for n.isInner() {
		side := choose(r, n)
		p.steps = append(p.steps, step{r, n, side, &r.images[n]})
		n = r.links[n].child[side]
	}
	p.key, p.value = runNodes{r}.leaf(n)
	return p
}

// after returns the path to the leaf on the right of p, or a path without a leaf if p is the last.
func (v *Version) after(p path, asked []byte) (path, error) {
	i := len(p.steps) - 1
	for ; i >= 0 && p.steps[i].side == right; i-- { //nolint:revive // the last step to the left
	}
	if i < 0 {
		return path{}, nil
	}
	turn := p.steps[i]
	turn.side = right
	next := path{steps: append(append(make([]step, 0, maxSteps), p.steps[:i]...), turn)}
	leftmost := func(*run, ref) int { return left }
	if turn.page != nil {
		return descendPage(next, turn.page, turn.page.links[turn.n].child[right], leftmost), nil
	}
	n := v.link(turn.n).child[right]
	for n.isInner() {
		next.steps = append(next.steps, step{nil, n, left, v.image(n)})
		n = v.link(n).child[left]
	}
	return v.complete(next, n, asked, leftmost)
}

// appendExistence appends a field with the given tag: the proof of the leaf at the end of p.
func appendExistence(b []byte, tag byte, p path) []byte {
	n := fieldBytes(len(p.key)) + fieldBytes(len(p.value)) + fieldBytes(len(stateLeafOp))
	for _, s := range p.steps {
		n += fieldBytes(innerOpLen(s.side))
	}
	if b == nil {
		b = make([]byte, 0, fieldBytes(n))
	}
	b = append(b, tag)
	b = binary.AppendUvarint(b, uint64(n))
	b = appendField(b, 0x0a, p.key)
	b = appendField(b, 0x12, p.value)
	b = appendField(b, 0x1a, stateLeafOp)
	for i := len(p.steps) - 1; i >= 0; i-- { // from the leaf up
		s := p.steps[i]
		b = append(b, 0x22, byte(innerOpLen(s.side)))
		if s.side == left {
			b = append(b, leftInnerOp...)
			b = append(b, s.image[:innerPrefixBytes]...)
			b = append(b, innerSuffix...)
			b = append(b, s.image.hash(right)[:]...)
		} else {
			b = append(b, rightInnerOp...)
			// The hash of the left child follows the prefix.
			b = append(b, s.image[:innerPrefixBytes+32]...)
		}
	}
	return b
}

// innerOpLen returns the length of an inner operation on a path that comes from this side.
func innerOpLen(side int) int {
	if side == left {
		return len(leftInnerOp) + innerPrefixBytes + len(innerSuffix) + 32
	}
	return len(rightInnerOp) + innerPrefixBytes + 32
}

// fieldBytes returns the length of a field of n bytes, including its tag and length.
func fieldBytes(n int) int { return 1 + int(record.UvarintBytes(n)) + n }

func appendField(b []byte, tag byte, field []byte) []byte {
	b = append(b, tag)
	b = binary.AppendUvarint(b, uint64(len(field)))
	return append(b, field...)
}

// below returns the greatest key below key, or nil if there is none.
func (v *Version) below(key []byte) ([]byte, error) {
	s, n := v.locate(key, true)
	switch {
	case n != 0:
		if k := v.key(n); bytes.Compare(k, key) < 0 {
			return k, nil
		}
	case s.Stub != emptyStub:
		p, err := v.page(s, justBelow(key)) // the path to key may lead elsewhere
		if err != nil {
			return nil, err
		}
		if i := p.below(key); i > 0 {
			return p.records().leaf(i - 1).Key, nil
		}
	}
	return nil, nil
}

// proveMap returns the map operator, which is the same for every proof of a version.
func (v *Version) proveMap() []byte {
	v.mapOnce.Do(func() {
		c := v.Commitment()
		v.mapProof = marshalProof(mapProof(c.Root.Hash, hashMapLeaf(mapChunksKey, c.chunksValue())))
	})
	return bytes.Clone(v.mapProof)
}
