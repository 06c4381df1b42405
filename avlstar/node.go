package avlstar

import "encoding/binary"

// image is an inner node as it is hashed (docs/spec/tree.md#hashes), followed by data of the tree's
// memory where SHA-256's padding would be. So a node needs no encoding, and hashing a node reads
// nothing else: the height, bytes and hash of a node are in its parent's image, and those of the
// root in its Version.
//
//	0     01
//	1     height and bytes of the left child   (9)
//	10    height and bytes of the right child  (9)
//	19    SHA256(key)                          (32)
//	51    hash of the left child               (32)
//	83    hash of the right child              (32)
//	115   flags                                (1)
//	116   ref of the leaf that has the key     (4)
//	120   epoch of the version that made it    (4)
//	124   unused                               (4)
type image [128]byte

const (
	imageStat  = 1
	imageKey   = 19
	imageHash  = 51
	imageBytes = 115 // number of bytes that are hashed

	imageFlags = 115
	imageRef   = 116
	imageEpoch = 120
)

// Flags of an image. A published node has no flag except moved.
const (
	dirtyLeft  = 1 << iota // hash and bytes of the left child must be computed
	dirtyRight             // the same for the right child
	dirtyKey               // SHA256(key) must be computed
	moved                  // key, leaf or height differ from the previous version
)

// freed is the epoch of a node that is in no version.
const freed = 1<<32 - 1

const (
	left  = 0
	right = 1
)

func dirty(side int) byte { return dirtyLeft << side }

func (i *image) hashed() []byte              { return i[:imageBytes] }
func (i *image) height(side int) uint8       { return i[imageStat+statBytes*side] }
func (i *image) setHeight(side int, h uint8) { i[imageStat+statBytes*side] = h }
func (i *image) bytes(side int) uint64 {
	return binary.BigEndian.Uint64(i[imageStat+1+statBytes*side:])
}
func (i *image) setBytes(side int, n uint64) {
	binary.BigEndian.PutUint64(i[imageStat+1+statBytes*side:], n)
}
func (i *image) hash(side int) *Hash            { return (*Hash)(i[imageHash+32*side:]) }
func (i *image) keyHash() *Hash                 { return (*Hash)(i[imageKey:]) }
func (i *image) leaf() ref                      { return ref(binary.LittleEndian.Uint32(i[imageRef:])) }
func (i *image) setLeaf(r ref)                  { binary.LittleEndian.PutUint32(i[imageRef:], uint32(r)) }
func (i *image) epoch() uint32                  { return binary.LittleEndian.Uint32(i[imageEpoch:]) }
func (i *image) setEpoch(e uint32)              { binary.LittleEndian.PutUint32(i[imageEpoch:], e) }
func (i *image) flags() byte                    { return i[imageFlags] }
func (i *image) setFlag(f byte)                 { i[imageFlags] |= f }
func (i *image) clearFlags()                    { i[imageFlags] = 0 }
func (i *image) total() uint64                  { return i.bytes(left) + i.bytes(right) }
func (i *image) ownHeight() uint8               { return 1 + max(i.height(left), i.height(right)) }
func (i *image) stat(side int) Stat             { return Stat{i.height(side), i.bytes(side)} }
func (i *image) stub(side int) Stub             { return Stub{i.stat(side), *i.hash(side)} }
func (i *image) setStub(side int, s Stub)       { i.setStat(side, s.Stat); *i.hash(side) = s.Hash }
func (i *image) setStat(side int, s Stat)       { i.setHeight(side, s.Height); i.setBytes(side, s.Bytes) }
func (i *image) isDirty(side int) bool          { return i[imageFlags]&dirty(side) != 0 }
func (i *image) newerThan(epoch uint32) bool    { return i.epoch() > epoch }
func isSmall(s Stat, chunkBytes uint64) bool    { return s.Bytes <= chunkBytes || s.Height == 0 }
func (i *image) isSmall(chunkBytes uint64) bool { return i.total() <= chunkBytes }

// sub is a subtree: its node, and its stub in its parent.
type sub struct {
	Stub
	n ref
}

// keyOf returns the key of inner node n.
func (w *view) keyOf(n ref) []byte { return w.key(w.image(n).leaf()) }

// less reports whether key, which has this prefix, is below the key of inner node n, whose link is
// l.
func (w *view) less(key []byte, prefix uint64, n ref, l *link) bool {
	if prefix != l.prefix {
		return prefix < l.prefix
	}
	return string(key) < string(w.keyOf(n))
}

// end returns the outermost node below n on one side: a leaf, or 0 if a stub is there.
func (w *view) end(n ref, side int) ref {
	for n.isInner() {
		n = w.link(n).child[side]
	}
	return n
}
