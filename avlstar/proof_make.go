package avlstar

import (
	"bytes"
	"crypto/sha256"
	"slices"

	ics23 "github.com/cosmos/ics23/go"
)

// proveState makes the state operator for key, nil in the empty tree.
func (v *Version) proveState(key []byte) []byte {
	if v.root == nil {
		return nil
	}
	if exist := v.existence(key); bytes.Equal(exist.Key, key) {
		return marshalProof(&ics23.CommitmentProof{Proof: &ics23.CommitmentProof_Exist{Exist: exist}})
	}
	absent := &ics23.NonExistenceProof{Key: key}
	if left := v.below(key); left != nil {
		absent.Left = v.existence(left)
	}
	for right := range v.Ascend(key, nil) {
		absent.Right = v.existence(right)
		break
	}
	return marshalProof(&ics23.CommitmentProof{Proof: &ics23.CommitmentProof_Nonexist{Nonexist: absent}})
}

// existence is the proof of the leaf where a search for key ends, in a tree that is not empty: of key itself, if it is there.
func (v *Version) existence(key []byte) *ics23.ExistenceProof {
	e := &ics23.ExistenceProof{Leaf: StateSpec.LeafSpec}
	n := v.root
	for n.isInner() {
		op := &ics23.InnerOp{Hash: ics23.HashOp_SHA256, Prefix: innerPrefix(n)}
		if bytes.Compare(key, n.key) < 0 {
			op.Suffix = n.right.hash[:]
			n = n.left
		} else {
			op.Prefix = append(op.Prefix, n.left.hash[:]...)
			n = n.right
		}
		e.Path = append(e.Path, op)
	}
	slices.Reverse(e.Path) // from the leaf up
	e.Key, e.Value = n.key, n.value
	return e
}

// innerPrefix is the image of an inner node up to its children's hashes: 01 ‖ stat(left) ‖ stat(right) ‖ SHA256(key).
func innerPrefix(n *node) []byte {
	b := n.left.stat().append(append(make([]byte, 0, innerPrefixBytes+32), 0x01))
	b = n.right.stat().append(b)
	h := sha256.Sum256(n.key)
	return append(b, h[:]...)
}

// below is the greatest key below key, nil where there is none.
func (v *Version) below(key []byte) []byte {
	if v.root == nil {
		return nil
	}
	n := v.root
	for n.isInner() {
		if bytes.Compare(n.key, key) < 0 {
			n = n.right // its least key is n.key, which is below key
		} else {
			n = n.left
		}
	}
	if bytes.Compare(n.key, key) < 0 {
		return n.key
	}
	return nil
}

// proveMap makes the map operator.
func (v *Version) proveMap() []byte {
	c := v.Commitment()
	return marshalProof(mapProof(c.Root.Hash, hashMapLeaf(mapChunksKey, c.chunksValue())))
}
