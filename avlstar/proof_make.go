package avlstar

import (
	"bytes"
	"encoding/binary"
)

// proveState makes the state operator for key, nil in the empty tree: what CommitmentProof.Marshal makes (proof_codec.go), written
// straight from the tree's memory.
func (v *Version) proveState(key []byte) ([]byte, error) {
	if v.top == emptyStub {
		return nil, nil
	}
	p, err := v.path(key, key)
	if err != nil {
		return nil, err
	}
	if bytes.Equal(v.key(p.leaf), key) {
		return v.appendExistence(nil, 0x0a, p), nil
	}
	b := appendField(make([]byte, 0, 8192), 0x0a, key)
	if bytes.Compare(v.key(p.leaf), key) < 0 { // else key is below all
		b = v.appendExistence(b, 0x12, p)
		if p, err = v.after(p, key); err != nil {
			return nil, err
		}
	}
	if p.leaf != 0 {
		b = v.appendExistence(b, 0x1a, p)
	}
	return appendField(nil, 0x12, b), nil
}

// path is the way from the root to a leaf.
type path struct {
	leaf  ref
	steps []step
}

type step struct {
	n    ref
	side int
}

// path returns the way to the leaf where a search for key ends. asked is what an error names.
func (v *Version) path(key, asked []byte) (path, error) {
	p := path{steps: make([]step, 0, 48)}
	prefix := prefixOf(key)
	return v.descend(p, v.root, asked, func(n ref, l *link) int {
		if v.less(key, prefix, n, l) {
			return left
		}
		return right
	})
}

// descend goes on from n to a leaf. The images, which the proof is made of, are on their way into the cache while it goes down.
func (v *Version) descend(p path, n ref, asked []byte, choose func(n ref, l *link) int) (path, error) {
	for n.isInner() {
		l := v.link(n)
		prefetchNode(l, v.image(n))
		side := choose(n, l)
		p.steps = append(p.steps, step{n, side})
		n = l.child[side]
	}
	if n == 0 {
		stub := v.top
		if len(p.steps) > 0 {
			last := p.steps[len(p.steps)-1]
			stub = v.image(last.n).stub(last.side)
		}
		return path{}, &MissingNodeError{Node: stub, Key: bytes.Clone(asked)}
	}
	p.leaf = n
	return p, nil
}

// after returns the way to the leaf right of p, one without a leaf where p is the last.
func (v *Version) after(p path, asked []byte) (path, error) {
	i := len(p.steps) - 1
	for ; i >= 0 && p.steps[i].side == right; i-- { //nolint:revive // the last step to the left
	}
	if i < 0 {
		return path{}, nil
	}
	n := p.steps[i].n
	next := path{steps: append(append(make([]step, 0, 48), p.steps[:i]...), step{n, right})}
	return v.descend(next, v.link(n).child[right], asked, func(ref, *link) int { return left })
}

// appendExistence appends a field of the given tag: the proof of the leaf at the end of p.
func (v *Version) appendExistence(b []byte, tag byte, p path) []byte {
	key, value := v.leaf(p.leaf)
	n := fieldBytes(len(key)) + fieldBytes(len(value)) + fieldBytes(len(stateLeafOp))
	for _, s := range p.steps {
		n += fieldBytes(innerOpLen(s.side))
	}
	if b == nil {
		b = make([]byte, 0, fieldBytes(n))
	}
	b = append(b, tag)
	b = binary.AppendUvarint(b, uint64(n))
	b = appendField(b, 0x0a, key)
	b = appendField(b, 0x12, value)
	b = appendField(b, 0x1a, stateLeafOp)
	for i := len(p.steps) - 1; i >= 0; i-- { // from the leaf up
		s := p.steps[i]
		image := v.image(s.n)
		b = append(b, 0x22, byte(innerOpLen(s.side)))
		if s.side == left {
			b = append(b, leftInnerOp...)
			b = append(b, image[:innerPrefixBytes]...)
			b = append(b, innerSuffix...)
			b = append(b, image.hash(right)[:]...)
		} else {
			b = append(b, rightInnerOp...)
			b = append(b, image[:innerPrefixBytes+32]...) // the left child's hash follows the prefix
		}
	}
	return b
}

// innerOpLen is the length of an inner operation whose path comes from this side.
func innerOpLen(side int) int {
	if side == left {
		return len(leftInnerOp) + innerPrefixBytes + len(innerSuffix) + 32
	}
	return len(rightInnerOp) + innerPrefixBytes + 32
}

// fieldBytes is the length of a field of n bytes with its tag and length.
func fieldBytes(n int) int { return 1 + int(uvarintBytes(n)) + n }

func appendField(b []byte, tag byte, field []byte) []byte {
	b = append(b, tag)
	b = binary.AppendUvarint(b, uint64(len(field)))
	return append(b, field...)
}

// below is the greatest key below key, nil where there is none.
func (v *Version) below(key []byte) []byte {
	prefix, n := prefixOf(key), v.root
	for n.isInner() {
		l := v.link(n)
		side := left
		if !v.less(key, prefix, n, l) && !bytes.Equal(v.keyOf(n), key) {
			side = right // its least key is that of n, which is below key
		}
		n = l.child[side]
	}
	if n != 0 && bytes.Compare(v.key(n), key) < 0 {
		return v.key(n)
	}
	return nil
}

// proveMap returns the map operator, which is the same for every proof of a version.
func (v *Version) proveMap() []byte {
	v.mapOnce.Do(func() {
		c := v.Commitment()
		v.mapProof = marshalProof(mapProof(c.Root.Hash, hashMapLeaf(mapChunksKey, c.chunksValue())))
	})
	return bytes.Clone(v.mapProof)
}
