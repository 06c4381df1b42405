package iavlsync

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/starling-kv/starling/internal/wire"
)

// Limits of nodes. The Cosmos SDK has the same limits (types.MaxKeyLength in its store, and
// snapshotMaxItemSize in its snapshots).
const (
	// MaxKeyBytes is the length of the longest key; the shortest has 1 byte.
	MaxKeyBytes = 1<<17 - 1
	// MaxLeafBytes is the limit of a leaf's key and value together. A value may be empty.
	MaxLeafBytes = 64_000_000
	// MaxLeaves is the maximum number of leaves in one store. With 2^31 leaves, the nonces in
	// IAVL's node keys would overflow.
	MaxLeaves = 1<<31 - 1
)

// Hash is the SHA-256 hash of an image.
type Hash [sha256.Size]byte

// String returns h in hexadecimal.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// Image is the part of a node that its hash binds. A leaf has height 0, size 1, a key and the hash
// of its value. An inner node has the hashes of its children and no key.
type Image struct {
	Height  uint8
	Size    int64 // number of leaves of the subtree; 1 for a leaf
	Version int64 // height of the block that made the node
	Key     []byte
	// ValueHash is the SHA-256 hash of a leaf's value.
	ValueHash   Hash
	Left, Right Hash
}

// Hash returns the hash of the node (cosmos/iavl v1, node.go, writeHashBytes):
//
//	leaf  = SHA256( varint(0) ‖ varint(1) ‖ varint(version) ‖ uvarint(len key) ‖ key ‖ 20 ‖ SHA256(value) )
//	inner = SHA256( varint(height) ‖ varint(size) ‖ varint(version) ‖ 20 ‖ left ‖ 20 ‖ right )
func (im *Image) Hash() Hash {
	if im.Height > 0 {
		return hashInner(im.Height, im.Size, im.Version, &im.Left, &im.Right)
	}
	return sha256.Sum256(append(appendLeafImage(nil, im.Version, im.Key), im.ValueHash[:]...))
}

// appendLeafImage appends the image of a leaf up to the hash of its value.
func appendLeafImage(b []byte, version int64, key []byte) []byte {
	b = append(b, 0, 2) // varint(0) ‖ varint(1)
	b = binary.AppendVarint(b, version)
	b = binary.AppendUvarint(b, uint64(len(key)))
	return append(append(b, key...), sha256.Size)
}

func hashInner(height uint8, size, version int64, left, right *Hash) Hash {
	var image [3*binary.MaxVarintLen64 + 2*(1+sha256.Size)]byte
	b := binary.AppendVarint(image[:0], int64(height))
	b = binary.AppendVarint(b, size)
	b = binary.AppendVarint(b, version)
	b = append(append(b, sha256.Size), left[:]...)
	b = append(append(b, sha256.Size), right[:]...)
	return sha256.Sum256(b)
}

// maxHeight is the height of the highest AVL tree with at most MaxLeaves leaves.
const maxHeight = 44

// minLeaves[h] is the number of leaves of the smallest AVL tree of height h (a Fibonacci number).
var minLeaves = func() (n [maxHeight + 1]int64) {
	n[0], n[1] = 1, 2
	for h := 2; h < len(n); h++ {
		n[h] = n[h-1] + n[h-2]
	}
	return n
}()

// check returns an error if the node cannot be in an IAVL tree of the state at height.
func (im *Image) check(height int64) error {
	switch {
	case im.Version < 1 || im.Version > height:
		return fmt.Errorf("node of version %d at height %d", im.Version, height)
	case im.Height > maxHeight || im.Size > MaxLeaves:
		return fmt.Errorf("node of height %d with %d leaves: at most %d and %d are supported", im.Height, im.Size, maxHeight, MaxLeaves)
	case im.Size < minLeaves[im.Height] || im.Size > 1<<im.Height:
		return fmt.Errorf("node of height %d with %d leaves: impossible in an AVL tree", im.Height, im.Size)
	case im.Height == 0:
		return checkKey(im.Key)
	}
	return nil
}

func checkKey(key []byte) error {
	if len(key) == 0 || len(key) > MaxKeyBytes {
		return fmt.Errorf("key of %d bytes: must be 1 to %d", len(key), MaxKeyBytes)
	}
	return nil
}

func checkHeight(height int64) error {
	if height < 1 {
		return fmt.Errorf("height %d: blocks are counted from 1", uint64(height))
	}
	return nil
}

// appendImage appends im as the manifest of a height holds it:
//
//	height:u8 ‖ uvarint(H − version) ‖ (leaf: uvarint(len key) ‖ key ‖ SHA256(value) | inner: uvarint(size) ‖ left ‖ right)
func appendImage(b []byte, height int64, im *Image) []byte {
	b = append(b, im.Height)
	b = binary.AppendUvarint(b, uint64(height-im.Version))
	if im.Height == 0 {
		b = binary.AppendUvarint(b, uint64(len(im.Key)))
		return append(append(b, im.Key...), im.ValueHash[:]...)
	}
	b = binary.AppendUvarint(b, uint64(im.Size))
	return append(append(b, im.Left[:]...), im.Right[:]...)
}

// readImage is the inverse of appendImage. The key of a leaf aliases the input.
func readImage(r *wire.Reader, height int64) (im Image) {
	im.Height = r.Byte("height")
	im.Version = readVersion(r, height)
	if im.Height == 0 {
		im.Size = 1
		im.Key = r.Bytes("key", MaxKeyBytes)
		im.ValueHash = r.Hash("hash of the value")
	} else {
		im.Size = int64(r.Uvarint("leaves", MaxLeaves))
		im.Left, im.Right = r.Hash("left child"), r.Hash("right child")
	}
	r.Check("node", im.check(height))
	return im
}

// readVersion reads uvarint(V − version) and returns the version, 1 to V.
func readVersion(r *wire.Reader, v int64) int64 { return v - int64(r.Uvarint("version", uint64(v-1))) }
