package iavlsync

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/starling-kv/starling/internal/wire"
)

// ErrInvalidRequest is wrapped by the errors about a request.
var ErrInvalidRequest = errors.New("invalid request")

// PartBytes is the length of each part of a long leaf except the last.
const PartBytes = 4 << 20

// Request requests the leaves of one subtree: a chunk of any format, half of a chunk, or a leaf.
type Request struct {
	Height int64  // height H of the state
	Store  string // name of the store
	// First is the index in the store of the first leaf, counted from 0.
	First int64
	// Leaves is the number of leaves of the subtree.
	Leaves int64
	// Offset is the byte offset in the leaf's chunk at which the requested part of a long leaf
	// begins. It is a multiple of PartBytes, and 0 unless Leaves is 1.
	Offset int64
	// Packed accepts a compressed answer, which packed.Unpacker splits.
	Packed bool
}

// Encode returns the only encoding of q (docs/spec/iavl.md#requests):
//
//	request = uvarint(H) ‖ uvarint(len name) ‖ name ‖ uvarint(first leaf) ‖ uvarint(leaves) ‖ uvarint(offset) [‖ 01]
func (q *Request) Encode() []byte {
	b := binary.AppendUvarint(nil, uint64(q.Height))
	b = binary.AppendUvarint(b, uint64(len(q.Store)))
	b = append(b, q.Store...)
	b = binary.AppendUvarint(b, uint64(q.First))
	b = binary.AppendUvarint(b, uint64(q.Leaves))
	b = binary.AppendUvarint(b, uint64(q.Offset))
	if q.Packed {
		b = append(b, 1)
	}
	return b
}

// DecodeRequest is the inverse of Encode.
func DecodeRequest(b []byte) (Request, error) {
	r := wire.NewReader(b)
	q := Request{Height: int64(r.Uvarint("height", math.MaxInt64)), Store: string(r.Bytes("store", MaxNameBytes)), First: int64(r.Uvarint("first leaf", MaxLeaves)),
		Leaves: int64(r.Uvarint("leaves", MaxLeaves)), Offset: int64(r.Uvarint("offset", maxLeafChunk))}
	if r.Len() == 1 && b[len(b)-1] == 1 {
		q.Packed = r.Byte("packed") == 1
	}
	err := r.End()
	if err == nil {
		err = q.check()
	}
	if err != nil {
		return Request{}, fmt.Errorf("%w: %w", ErrInvalidRequest, err)
	}
	return q, nil
}

func (q *Request) check() error {
	switch {
	case q.Store == "":
		return errors.New("no store")
	case q.Leaves == 0:
		return errors.New("no leaves")
	case q.First+q.Leaves > MaxLeaves:
		return fmt.Errorf("leaves up to number %d: at most %d are supported", q.First+q.Leaves, int64(MaxLeaves))
	case q.Offset > 0 && (q.Leaves > 1 || q.Offset%PartBytes != 0):
		return fmt.Errorf("offset %d in %d leaves: must be a multiple of %d in a single leaf", q.Offset, q.Leaves, PartBytes)
	}
	return checkHeight(q.Height)
}

// AnswerKind is the first byte of an answer.
type AnswerKind uint8

// The kinds of answers. The length of the subtree's chunk, and whether it is a leaf, determine the
// kind.
const (
	// AnswerWhole is followed by the chunk, which has at most MaxAnswerBytes. See VerifyChunk.
	AnswerWhole AnswerKind = iota
	// AnswerHalves is followed by the images of the root's children, because the chunk is too
	// large. See VerifyHalves. The receiver then requests each child in the same way.
	AnswerHalves
	// AnswerPart is followed by a part of a leaf that is too large. See Parts.Add.
	AnswerPart
)

// SplitAnswer returns the kind of an answer and the bytes after it.
func SplitAnswer(b []byte) (AnswerKind, []byte, error) {
	if len(b) == 0 || b[0] > byte(AnswerPart) {
		return 0, nil, fmt.Errorf("%w: unknown kind of answer", ErrInvalidChunk)
	}
	return AnswerKind(b[0]), b[1:], nil
}

// AppendHalves appends an answer of kind AnswerHalves for a node of the state at a height, with the
// images of the node's children:
//
//	answer = 1 ‖ image of the left child ‖ image of the right child (as in the manifest)
func AppendHalves(b []byte, height int64, left, right *Image) []byte {
	return appendImage(appendImage(append(b, byte(AnswerHalves)), height, left), height, right)
}

// VerifyHalves decodes the images of a node's children and verifies them against the node's image.
// b is an answer without its first byte, AnswerHalves, and height is the height of the state. The
// left child has the first leaves of the node, the right child the others.
func VerifyHalves(root *Image, height int64, b []byte) (left, right *Image, err error) {
	r := wire.NewReader(b)
	l, h := readImage(&r, height), readImage(&r, height)
	err = r.End()
	switch {
	case err != nil:
	case root.Height == 0:
		err = errors.New("halves of a leaf")
	case l.Hash() != root.Left || h.Hash() != root.Right:
		err = errors.New("hash of a half does not match")
	case l.Size+h.Size != root.Size || 1+max(l.Height, h.Height) != root.Height || max(l.Version, h.Version) > root.Version:
		// The images match the root's verified hashes, so the state itself was built wrongly.
		err = errors.New("halves do not fit their root")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrInvalidChunk, err)
	}
	return &l, &h, nil
}

// Parts collects the parts of a long leaf, in order. Verify verifies them together, so all of them
// should come from one peer. The zero value is ready for use.
type Parts struct {
	total int64
	b     []byte
}

// Offset returns the offset of the next part.
func (p *Parts) Offset() int64 { return int64(len(p.b)) }

// Complete reports whether all parts were added.
func (p *Parts) Complete() bool { return p.total > 0 && p.Offset() == p.total }

// Add adds a part. b is the answer to a request with the offset p.Offset(), without its first byte,
// AnswerPart:
//
//	answer = 2 ‖ uvarint(length of the leaf's chunk) ‖ PartBytes of it from the offset, or all up to its end
//
// leaf is the verified image of the leaf. Memory grows only with the bytes that have arrived,
// because the length is not verified.
func (p *Parts) Add(leaf *Image, b []byte) error {
	r := wire.NewReader(b)
	total, part := int64(r.Uvarint("length", maxLeafChunk)), r.Rest()
	head := appendLeafHead(nil, leaf.Key)
	err := r.Err()
	switch {
	case err != nil:
	case leaf.Height != 0 || p.Complete():
		err = errors.New("part was not requested")
	case total <= MaxAnswerBytes:
		err = fmt.Errorf("part of a leaf of %d bytes, which must be sent whole", total)
	case p.total != 0 && p.total != total:
		err = fmt.Errorf("part of a leaf of %d bytes, earlier parts had %d", total, p.total)
	case int64(len(part)) != min(PartBytes, total-p.Offset()):
		err = fmt.Errorf("part of %d bytes, expected %d", len(part), min(PartBytes, total-p.Offset()))
	case p.Offset() == 0 && !bytes.HasPrefix(part, head):
		err = errors.New("part of another leaf")
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidChunk, err)
	}
	p.total, p.b = total, append(p.b, part...)
	return nil
}

// Verify verifies the parts together. The result takes over the memory of p, and p is reset.
func (p *Parts) Verify(leaf *Image) (*Chunk, error) {
	b := p.b
	if !p.Complete() {
		return nil, fmt.Errorf("%w: %d of %d bytes", ErrInvalidChunk, len(b), p.total)
	}
	*p = Parts{}
	return VerifyChunk(leaf, b)
}

// appendLeafHead appends the beginning of a leaf's own chunk, up to its key.
func appendLeafHead(b []byte, key []byte) []byte {
	b = binary.AppendUvarint(append(b, 0), uint64(len(key)))
	return append(b, key...)
}
