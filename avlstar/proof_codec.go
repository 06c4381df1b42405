package avlstar

import (
	"bytes"
	"errors"
	"fmt"

	ics23 "github.com/cosmos/ics23/go"

	"github.com/starling-kv/starling/avlstar/record"
)

// The encoding of cosmos.ics23.v1.CommitmentProof (protobuf), as far as StateSpec and MapSpec leave
// a choice: fields in the order of their numbers, defaults left out, no unknown fields. The specs
// fix everything else, and the decoder compares it:
//
//	CommitmentProof    0a ExistenceProof | 12 NonExistenceProof
//	NonExistenceProof  0a key  [12 ExistenceProof (left)]  [1a ExistenceProof (right)]
//	ExistenceProof     0a key  12 value  1a LeafOp  22 InnerOp ...  (from the leaf up)
//	LeafOp             08 01 10 01 18 01 2a 01 00
//	InnerOp            08 01 12 33 prefix:51 1a 20 right:32   (the path comes from the left child)
//	                 | 08 01 12 53 prefix:51 left:32          (... from the right child)
//
// The length of each message and byte string precedes it, as a uvarint.
const (
	innerPrefixBytes = 51 // 01 ‖ stat(left):9 ‖ stat(right):9 ‖ SHA256(key):32

	// maxProofDepth is the limit of ICS-23 verifiers if the spec's max_depth is 0. An AVL tree of
	// that height has more than 10^26 leaves.
	maxProofDepth = 128

	// maxStateProofBytes is the length of the longest state operator: a proof of absence in which
	// both neighbours have the largest key and value.
	maxStateProofBytes = 2*(MaxKeyBytes+MaxValueBytes+maxProofDepth*innerOpBytes+64) + MaxKeyBytes + 64
	innerOpBytes       = 2 + 89 // tag, length, and the longer of the two forms
)

var (
	stateLeafOp  = []byte{0x08, 1, 0x10, 1, 0x18, 1, 0x2a, 1, 0}
	leftInnerOp  = []byte{0x08, 1, 0x12, innerPrefixBytes}
	rightInnerOp = []byte{0x08, 1, 0x12, innerPrefixBytes + 32}
	innerSuffix  = []byte{0x1a, 32}
)

// decodeStateProof decodes a proof of presence or absence under StateSpec. It refuses every
// encoding except that of CommitmentProof.Marshal. The result refers to b. It computes no hash, and
// its allocations are proportional to the bytes that it has read.
func decodeStateProof(b []byte) (*ics23.CommitmentProof, error) {
	if len(b) > maxStateProofBytes {
		return nil, fmt.Errorf("%d bytes, a proof has at most %d", len(b), maxStateProofBytes)
	}
	r := protoReader{b}
	switch r.peek() {
	case 0x0a:
		exist, err := r.existence(0x0a)
		if err != nil {
			return nil, err
		}
		return &ics23.CommitmentProof{Proof: &ics23.CommitmentProof_Exist{Exist: exist}}, r.end()
	case 0x12:
		body, err := r.field(0x12, 1, maxStateProofBytes, "proof of absence")
		if err != nil {
			return nil, err
		}
		nonexist, err := decodeNonExistence(body)
		if err != nil {
			return nil, fmt.Errorf("proof of absence: %w", err)
		}
		return &ics23.CommitmentProof{Proof: &ics23.CommitmentProof_Nonexist{Nonexist: nonexist}}, r.end()
	case 0x1a, 0x22:
		return nil, errors.New("batch and compressed proofs are not accepted")
	}
	return nil, errors.New("neither a proof of presence nor one of absence")
}

func decodeNonExistence(body []byte) (*ics23.NonExistenceProof, error) {
	r := protoReader{body}
	key, err := r.field(0x0a, 1, MaxKeyBytes, "key")
	if err != nil {
		return nil, err
	}
	n := &ics23.NonExistenceProof{Key: key}
	if r.peek() == 0x12 {
		if n.Left, err = r.existence(0x12); err != nil {
			return nil, fmt.Errorf("left neighbour: %w", err)
		}
	}
	if r.peek() == 0x1a {
		if n.Right, err = r.existence(0x1a); err != nil {
			return nil, fmt.Errorf("right neighbour: %w", err)
		}
	}
	if n.Left == nil && n.Right == nil {
		return nil, errors.New("no neighbour")
	}
	return n, r.end()
}

// protoReader reads protobuf fields of wire type 2 (length-delimited) in a given order.
type protoReader struct{ b []byte }

// peek returns the next field's tag. At the end it returns 0, which is not a valid tag.
func (r *protoReader) peek() byte {
	if len(r.b) == 0 {
		return 0
	}
	return r.b[0]
}

// field reads the field with this tag and minLen to maxLen bytes. The result has no spare capacity,
// because ics23/go appends to the slices that it is given.
func (r *protoReader) field(tag byte, minLen, maxLen int, what string) ([]byte, error) {
	if r.peek() != tag {
		return nil, fmt.Errorf("%s is missing", what)
	}
	n, rest, err := record.Uvarint(r.b[1:])
	if err != nil {
		return nil, fmt.Errorf("length of %s: %w", what, err)
	}
	switch {
	case n < uint64(minLen) || n > uint64(maxLen):
		return nil, fmt.Errorf("%s of %d bytes, must be %d to %d", what, n, minLen, maxLen)
	case n > uint64(len(rest)):
		return nil, fmt.Errorf("%s is cut off", what)
	}
	r.b = rest[n:]
	return rest[:n:n], nil
}

func (r *protoReader) end() error {
	if len(r.b) != 0 {
		return fmt.Errorf("%d extra bytes at the end", len(r.b))
	}
	return nil
}

func (r *protoReader) existence(tag byte) (*ics23.ExistenceProof, error) {
	body, err := r.field(tag, 1, maxStateProofBytes, "proof of presence")
	if err != nil {
		return nil, err
	}
	e, in := &ics23.ExistenceProof{Leaf: StateSpec.LeafSpec}, protoReader{body}
	if e.Key, err = in.field(0x0a, 1, MaxKeyBytes, "key"); err != nil {
		return nil, err
	}
	if e.Value, err = in.field(0x12, 1, MaxValueBytes, "value"); err != nil {
		return nil, err
	}
	leaf, err := in.field(0x1a, len(stateLeafOp), len(stateLeafOp), "leaf operation")
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(leaf, stateLeafOp) {
		return nil, errors.New("the leaf operation is not the spec's")
	}
	for len(in.b) > 0 {
		if len(e.Path) == maxProofDepth {
			return nil, fmt.Errorf("more than %d inner operations", maxProofDepth)
		}
		op, err := in.inner()
		if err != nil {
			return nil, fmt.Errorf("inner operation %d: %w", len(e.Path), err)
		}
		e.Path = append(e.Path, op)
	}
	return e, nil
}

func (r *protoReader) inner() (*ics23.InnerOp, error) {
	body, err := r.field(0x22, 87, 89, "operation")
	if err != nil {
		return nil, err
	}
	op := &ics23.InnerOp{Hash: ics23.HashOp_SHA256}
	left, right := bytes.CutPrefix(body, rightInnerOp)
	switch {
	case right && len(left) == innerPrefixBytes+32:
		op.Prefix = left
	case len(body) == 89 && bytes.HasPrefix(body, leftInnerOp) && bytes.Equal(body[55:57], innerSuffix):
		op.Prefix, op.Suffix = body[4:55:55], body[57:89:89]
	default:
		return nil, errors.New("it is not of the spec's form")
	}
	if op.Prefix[0] != 1 {
		return nil, errors.New("its prefix does not start with 01")
	}
	return op, nil
}

// The proof of "state" in the simple Merkle map, whose two leaves are "chunks" and "state":
//
//	0a 5b  0a 05 "state"  12 20 root:32  1a 09 08 01 18 01 20 01 2a 01 00  22 25 08 01 12 21 01 leaf of "chunks":32
const (
	mapProofBytes   = 93
	mapRootAt       = 11
	mapChunksLeafAt = 61
)

// mapProof returns the proof that root is the state's root in a map whose other leaf has the hash
// chunksLeaf.
func mapProof(root, chunksLeaf Hash) *ics23.CommitmentProof {
	return &ics23.CommitmentProof{Proof: &ics23.CommitmentProof_Exist{Exist: &ics23.ExistenceProof{
		Key:   []byte(MapKey),
		Value: root[:],
		Leaf:  MapSpec.LeafSpec,
		Path:  []*ics23.InnerOp{{Hash: ics23.HashOp_SHA256, Prefix: append([]byte{1}, chunksLeaf[:]...)}},
	}}}
}

// decodeMapProof decodes results of mapProof and refuses everything else: only the two hashes may
// differ.
func decodeMapProof(b []byte) (root, chunksLeaf Hash, err error) {
	if len(b) != mapProofBytes {
		return root, chunksLeaf, fmt.Errorf("%d bytes instead of %d", len(b), mapProofBytes)
	}
	copy(root[:], b[mapRootAt:])
	copy(chunksLeaf[:], b[mapChunksLeafAt:])
	if !bytes.Equal(marshalProof(mapProof(root, chunksLeaf)), b) {
		return root, chunksLeaf, fmt.Errorf("it is not a proof of %q in a map of two", MapKey)
	}
	return root, chunksLeaf, nil
}

// marshalProof serialises a proof that this package made. That cannot fail: the generated code
// returns no error for such a message.
func marshalProof(p *ics23.CommitmentProof) []byte {
	b, err := p.Marshal()
	if err != nil {
		panic(fmt.Sprintf("avlstar: cannot serialise a proof: %v", err))
	}
	return b
}
