package avlstar

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// Hash is a SHA-256 hash.
type Hash [32]byte

// String returns the hash in lower-case hexadecimal.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// Stat is the height of a subtree and the length of its leaf records. A parent (for the root: the
// AppHash) commits to it along with the subtree's hash.
type Stat struct {
	Height uint8
	Bytes  uint64
}

// statBytes is the length of an encoded Stat: height:u8 ‖ bytes:u64be (docs/spec/tree.md#hashes).
const statBytes = 1 + 8

func (s Stat) append(b []byte) []byte {
	return binary.BigEndian.AppendUint64(append(b, s.Height), s.Bytes)
}

// Stub is the commitment of a subtree.
type Stub struct {
	Stat
	Hash Hash
}

// emptyRoot is the root hash of the empty tree: SHA256("") (docs/spec/tree.md#hashes).
var emptyRoot = Hash(sha256.Sum256(nil))

// hashLeaf returns SHA256(00 ‖ SHA256(key) ‖ SHA256(value)) (docs/spec/tree.md#hashes): ICS-23's
// leaf operation with prefix 00 and both prehashes.
func hashLeaf(keyHash, valueHash Hash) Hash {
	var image [1 + 32 + 32]byte
	image[0] = 0x00
	copy(image[1:], keyHash[:])
	copy(image[33:], valueHash[:])
	return sha256.Sum256(image[:])
}

// hashInner returns SHA256(01 ‖ stat(left) ‖ stat(right) ‖ SHA256(key) ‖ left ‖ right)
// (docs/spec/tree.md#hashes).
func hashInner(l, r Stub, keyHash Hash) Hash {
	i := image{0: 0x01}
	i.setStub(left, l)
	i.setStub(right, r)
	*i.keyHash() = keyHash
	return i.sum()
}

// sum returns the hash of an inner node.
func (i *image) sum() Hash { return sha256.Sum256(i.hashed()) }

// hashMapLeaf returns the hash of a leaf of CometBFT's simple Merkle map (crypto/merkle; the Cosmos
// multi-store uses it too): SHA256(00 ‖ uvarint(len key) ‖ key ‖ uvarint(32) ‖ SHA256(value))
// (docs/spec/tree.md#app-hash; the leaf prefix of RFC 6962).
func hashMapLeaf(key string, value []byte) Hash {
	image := make([]byte, 0, 64)
	image = append(image, 0x00)
	image = binary.AppendUvarint(image, uint64(len(key)))
	image = append(image, key...)
	image = append(image, sha256.Size)
	valueHash := sha256.Sum256(value)
	return sha256.Sum256(append(image, valueHash[:]...))
}

// hashMapInner returns SHA256(01 ‖ left ‖ right), the hash of an inner node of the simple Merkle
// map (docs/spec/tree.md#app-hash; the inner prefix of RFC 6962).
func hashMapInner(left, right Hash) Hash {
	var image [1 + 32 + 32]byte
	image[0] = 0x01
	copy(image[1:], left[:])
	copy(image[33:], right[:])
	return sha256.Sum256(image[:])
}
