package iavlsync

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
)

// Limits of nodes. The Cosmos SDK has the same (types.MaxKeyLength of its store, and
// snapshotMaxItemSize of its snapshots).
const (
	// MaxKeyBytes is the length of the longest key; the shortest has 1 byte.
	MaxKeyBytes = 1<<17 - 1
	// MaxLeafBytes is the limit of a leaf's key and value together. A value may be empty.
	MaxLeafBytes = 64_000_000
	// MaxLeaves is the limit of leaves in one store: the nonces of 2^31 would not fit into IAVL's
	// keys of nodes.
	MaxLeaves = 1<<31 - 1
)

// Hash is the SHA-256 hash of an image.
type Hash [sha256.Size]byte

// String returns h in hexadecimal.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// Image is all of a node that its hash binds. A leaf has height 0, one leaf, a key and the hash of
// its value; an inner node the hashes of its children, and no key.
type Image struct {
	Height  uint8
	Size    int64 // leaves below, itself if it is one
	Version int64 // of the block that made the node
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

// check refuses a node that is in no IAVL tree of height H.
func (im *Image) check(height int64) error {
	switch {
	case im.Version < 1 || im.Version > height:
		return fmt.Errorf("node of version %d at height %d", im.Version, height)
	case im.Height > maxHeight || im.Size > MaxLeaves:
		return fmt.Errorf("node of height %d with %d leaves: at most %d and %d are supported", im.Height, im.Size, maxHeight, MaxLeaves)
	case im.Size < minLeaves[im.Height] || im.Size > 1<<im.Height:
		return fmt.Errorf("node of height %d with %d leaves: no AVL tree is like that", im.Height, im.Size)
	case im.Height == 0:
		return checkKey(im.Key)
	}
	return nil
}

func checkKey(key []byte) error {
	if len(key) == 0 || len(key) > MaxKeyBytes {
		return fmt.Errorf("key of %d bytes: it has 1 to %d", len(key), MaxKeyBytes)
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

// image is the inverse of appendImage. The key of a leaf is part of what is read.
func (r *reader) image(height int64) (im Image) {
	im.Height = r.byte()
	im.Version = r.version(height)
	if im.Height == 0 {
		im.Size = 1
		im.Key = r.bytes(MaxKeyBytes)
		im.ValueHash = r.hash()
	} else {
		im.Size = r.int64(MaxLeaves)
		im.Left, im.Right = r.hash(), r.hash()
	}
	if r.err == nil {
		r.fail(im.check(height))
	}
	return im
}

// version reads uvarint(V − version) and returns the version, 1 to V.
func (r *reader) version(v int64) int64 { return v - r.int64(v-1) }

// maxInt64 is the limit where no other applies.
const maxInt64 = math.MaxInt64
