package iavlsync

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrInvalidRequest is wrapped by the errors about a request.
var ErrInvalidRequest = errors.New("invalid request")

// PartBytes is the length of each part of a long leaf but the last.
const PartBytes = 4 << 20

// Request asks for the leaves of one subtree: a chunk of any format, half of one, or a leaf.
type Request struct {
	Height int64  // H of the state
	Store  string // its name
	// First is the number of the first leaf, counted from 0 in the store.
	First int64
	// Leaves is how many leaves the subtree has.
	Leaves int64
	// Offset is where the part of a long leaf begins, in bytes of its chunk: a multiple of
	// PartBytes, and 0 unless Leaves is 1.
	Offset int64
}

// Encode returns the only encoding of q (docs/spec/iavl.md#requests):
//
//	request = uvarint(H) ‖ uvarint(len name) ‖ name ‖ uvarint(first leaf) ‖ uvarint(leaves) ‖ uvarint(offset)
func (q *Request) Encode() []byte {
	b := binary.AppendUvarint(nil, uint64(q.Height))
	b = binary.AppendUvarint(b, uint64(len(q.Store)))
	b = append(b, q.Store...)
	b = binary.AppendUvarint(b, uint64(q.First))
	b = binary.AppendUvarint(b, uint64(q.Leaves))
	return binary.AppendUvarint(b, uint64(q.Offset))
}

// DecodeRequest is the inverse of Encode.
func DecodeRequest(b []byte) (Request, error) {
	r := reader{b: b}
	q := Request{Height: r.int64(maxInt64), Store: string(r.bytes(MaxNameBytes)),
		First: r.int64(MaxLeaves), Leaves: r.int64(MaxLeaves), Offset: r.int64(maxLeafChunk)}
	err := r.end()
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
		return fmt.Errorf("offset %d in %d leaves: parts are of one leaf, at multiples of %d", q.Offset, q.Leaves, PartBytes)
	}
	return checkHeight(q.Height)
}

// AnswerKind is the first byte of an answer.
type AnswerKind uint8

// The kinds of answers. Which one is right depends on the length of the subtree's chunk alone.
const (
	// AnswerWhole is followed by the chunk, of at most MaxAnswerBytes: VerifyChunk.
	AnswerWhole AnswerKind = iota
	// AnswerHalves is followed by the images of the root's children, since the chunk is too large:
	// VerifyHalves. Each is then requested in the same way.
	AnswerHalves
	// AnswerPart is followed by a part of a leaf that is too large: Parts.Add.
	AnswerPart
)

// SplitAnswer returns the kind of an answer and what follows it.
func SplitAnswer(b []byte) (AnswerKind, []byte, error) {
	if len(b) == 0 || b[0] > byte(AnswerPart) {
		return 0, nil, fmt.Errorf("%w: an answer of no known kind", ErrInvalidChunk)
	}
	return AnswerKind(b[0]), b[1:], nil
}

// AppendHalves appends the answer AnswerHalves, of the state of a height, with the images of a
// node's children:
//
//	answer = 1 ‖ image of the left child ‖ image of the right child (as in the manifest)
func AppendHalves(b []byte, height int64, left, right *Image) []byte {
	return appendImage(appendImage(append(b, byte(AnswerHalves)), height, left), height, right)
}

// VerifyHalves decodes the images of a node's children, which follow AnswerHalves in an answer of
// the state of a height, and proves them against the node's image. The left child has the first of
// the node's leaves, the right child the others.
func VerifyHalves(root *Image, height int64, b []byte) (left, right *Image, err error) {
	r := reader{b: b}
	l, h := r.image(height), r.image(height)
	err = r.end()
	switch {
	case err != nil:
	case root.Height == 0:
		err = errors.New("halves of a leaf")
	case l.Hash() != root.Left || h.Hash() != root.Right:
		err = errors.New("a half that has another hash")
	case l.Size+h.Size != root.Size || 1+max(l.Height, h.Height) != root.Height || max(l.Version, h.Version) > root.Version:
		// The root's image is proved, so whoever built this state broke it.
		err = errors.New("halves that do not fit their root")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrInvalidChunk, err)
	}
	return &l, &h, nil
}

// Parts collects the parts of a long leaf, in order. They are proved together, by Verify: so all of
// them should come from one peer. The zero value is ready for use.
type Parts struct {
	total int64
	b     []byte
}

// Offset is where the next part begins.
func (p *Parts) Offset() int64 { return int64(len(p.b)) }

// Complete reports whether all parts are there.
func (p *Parts) Complete() bool { return p.total > 0 && p.Offset() == p.total }

// Add takes what follows AnswerPart in the answer to a request of this Offset:
//
//	answer = 2 ‖ uvarint(length of the leaf's chunk) ‖ PartBytes of it from the offset, or all up to its end
//
// leaf is the proved image of the leaf. Memory grows with what has arrived: the length is a claim.
func (p *Parts) Add(leaf *Image, b []byte) error {
	r := reader{b: b}
	total := r.int64(maxLeafChunk)
	head := appendLeafHead(nil, leaf.Key)
	err := r.err
	switch {
	case err != nil:
	case leaf.Height != 0 || p.Complete():
		err = errors.New("a part that was not requested")
	case total <= MaxAnswerBytes:
		err = fmt.Errorf("parts of a leaf of %d bytes, which travels whole", total)
	case p.total != 0 && p.total != total:
		err = fmt.Errorf("a part of %d bytes, of %d before", total, p.total)
	case int64(len(r.b)) != min(PartBytes, total-p.Offset()):
		err = fmt.Errorf("a part of %d bytes, not %d", len(r.b), min(PartBytes, total-p.Offset()))
	case p.Offset() == 0 && !bytes.HasPrefix(r.b, head):
		err = errors.New("parts of another leaf")
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidChunk, err)
	}
	p.total, p.b = total, append(p.b, r.b...)
	return nil
}

// Verify proves the parts together. It takes the memory of p with it.
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
