package dsm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// The methods of the transport by which the nodes of a sharded state ask and feed each other
// (docs/spec/transport.md#methods). Storage nodes answer all of them, validators Witness and Upper.
const (
	MethodRanges  uint8 = 12 // which ranges and heights a node has
	MethodWitness uint8 = 13 // a bag that opens what is wanted
	MethodUpper   uint8 = 14 // a commitment and the tree's upper nodes
	MethodUpdate  uint8 = 15 // a part of what a block changes in a range
	MethodOutline uint8 = 20 // the upper tree over a node's ranges, of a snapshot
)

// Limits of the messages.
const (
	MaxBodyBytes = 1 << 20 // of a request; the transport carries no longer one
	MaxClaims    = 1024    // ranges in an answer to MethodRanges
	MaxWants     = 16_384  // in a request for a witness
	MaxHeld      = 16_384  // hashes in a request for a witness
	// MaxUpdateBytes is the greatest length of an encoded update. It holds that of every block that
	// CometBFT allows (docs/spec/updates.md). Nodes may set a lower one.
	MaxUpdateBytes = 256 << 20
	// MaxPartBytes is the greatest part of an update in one request.
	MaxPartBytes = MaxBodyBytes - 16<<10
	// MaxOutlineRange is the greatest part of an outline in one answer.
	MaxOutlineRange = 8 << 20
	// CommitmentBytes is the length of an encoded avlstar.Commitment.
	CommitmentBytes = 53

	MaxClaimsBytes    = 1 + 2 + MaxClaims*(2*(2+MaxKeyBytes)+4*8)
	UpdateAnswerBytes = 8 + 8 + 4

	claimsVersion = 1
	hashBytes     = 32
)

// ErrMessage is wrapped by the errors of all decoders: the bytes are not what this package encodes.
var ErrMessage = errors.New("malformed message")

// Claim is what a node says of one range that it keeps. Nothing of it is proved: it is a hint for
// whom to ask first.
type Claim struct {
	Range          Range
	Oldest, Newest int64 // the heights of which it can answer witnesses; 0, 0: none
	Durable        int64 // the height to which its updates are logged and synced; 0: none
	// Needs is the height of the update that it waits for, above Durable; 0: it takes none, since
	// it fetches chunks.
	Needs int64
}

func (c Claim) check() error {
	switch {
	case c.Oldest < 0 || c.Newest < c.Oldest || (c.Oldest == 0) != (c.Newest == 0):
		return fmt.Errorf("heights from %d to %d", c.Oldest, c.Newest)
	case c.Durable < 0 || c.Needs < 0 || c.Needs != 0 && c.Needs <= c.Durable:
		return fmt.Errorf("durable at %d and waiting for %d", c.Durable, c.Needs)
	}
	return c.Range.check()
}

// EncodeClaims encodes what a node has, in the order of keys. It fails if the ranges do not ascend
// or overlap, if there are more than MaxClaims, or if heights contradict each other.
//
//	version:u8 (1) ‖ n:u16be ‖ (range ‖ oldest:u64be ‖ newest:u64be ‖ durable:u64be ‖ needs:u64be) × n
//	range = key ‖ key, empty: open;  key = length:u16be ‖ bytes
func EncodeClaims(claims []Claim) ([]byte, error) {
	if err := checkClaims(claims); err != nil {
		return nil, fmt.Errorf("dsm: claims: %w", err)
	}
	b := binary.BigEndian.AppendUint16([]byte{claimsVersion}, uint16(len(claims)))
	for _, c := range claims {
		b = appendRange(b, c.Range)
		for _, h := range []int64{c.Oldest, c.Newest, c.Durable, c.Needs} {
			b = binary.BigEndian.AppendUint64(b, uint64(h))
		}
	}
	return b, nil
}

func checkClaims(claims []Claim) error {
	if len(claims) > MaxClaims {
		return fmt.Errorf("%d ranges, the limit is %d", len(claims), MaxClaims)
	}
	for i, c := range claims {
		if err := c.check(); err != nil {
			return fmt.Errorf("range %d: %w", i, err)
		}
		if i > 0 && !before(claims[i-1].Range, c.Range) {
			return fmt.Errorf("%v does not follow %v", c.Range, claims[i-1].Range)
		}
	}
	return nil
}

// before reports whether all keys of r are below those of next.
func before(r, next Range) bool {
	return len(r.After) > 0 && bytes.Compare(r.After, next.First) <= 0
}

// DecodeClaims is the inverse of EncodeClaims. The keys refer to b.
func DecodeClaims(b []byte) ([]Claim, error) {
	r := reader{b: b}
	version, n := r.byte(), int(r.uint16())
	if r.failed || version != claimsVersion || n > MaxClaims {
		return nil, fmt.Errorf("claims: version %d, %d ranges: %w", version, n, ErrMessage)
	}
	const least = 2*2 + 4*8
	if n > len(r.b)/least {
		return nil, fmt.Errorf("claims: %d ranges in %d bytes: %w", n, len(r.b), ErrMessage)
	}
	claims := make([]Claim, 0, n)
	for range n {
		claims = append(claims, Claim{Range: r.keyRange(), Oldest: r.height(), Newest: r.height(), Durable: r.height(), Needs: r.height()})
	}
	if err := r.end(); err != nil {
		return nil, fmt.Errorf("claims: %w", err)
	}
	if err := checkClaims(claims); err != nil {
		return nil, fmt.Errorf("claims: %w: %w", err, ErrMessage)
	}
	return claims, nil
}

// Witness asks for the bag of one height that opens wants below what the requester has
// (docs/spec/bags.md#what-a-bag-opens). The answer is the bag; without any byte it means that the
// bag would be longer than MaxBytes, so that less is to be asked for at once. Who does not have the
// height answers that it is gone.
type Witness struct {
	Height   int64             // above 0
	Depth    uint8             // inner nodes on each way that the requester has
	MaxBytes uint32            // of the answer, above 0; the answering node can set a lower limit
	Held     [][hashBytes]byte // hashes of stubs that the requester has, in any order, each once
	Wants    []Want            // in any order
}

// Encode encodes the request. It fails if a field is out of its limits, or if the body would be too
// long.
//
//	height:u64be ‖ depth:u8 ‖ max bytes:u32be ‖ n:u32be ‖ hash:32 × n ‖ m:u32be ‖ want × m
//	want = flags:u8 ‖ key [‖ after], empty: open     flags: 1 a range, which has after; 2 next; 4 deleted
//
// Hashes ascend; so do wants, by key, flags and after.
func (w Witness) Encode() ([]byte, error) {
	held := slices.Clone(w.Held)
	slices.SortFunc(held, func(a, b [hashBytes]byte) int { return bytes.Compare(a[:], b[:]) })
	sorted := Witness{w.Height, w.Depth, w.MaxBytes, slices.Compact(held), Normal(w.Wants)}
	if err := sorted.check(); err != nil {
		return nil, fmt.Errorf("dsm: witness request: %w", err)
	}
	b := binary.BigEndian.AppendUint64(nil, uint64(w.Height))
	b = binary.BigEndian.AppendUint32(append(b, w.Depth), w.MaxBytes)
	b = binary.BigEndian.AppendUint32(b, uint32(len(sorted.Held)))
	for _, h := range sorted.Held {
		b = append(b, h[:]...)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(sorted.Wants)))
	for _, want := range sorted.Wants {
		b = appendKey(append(b, want.flags()), want.Key)
		if want.Range {
			b = appendKey(b, want.After)
		}
	}
	if len(b) > MaxBodyBytes {
		return nil, fmt.Errorf("dsm: witness request of %d bytes, the limit is %d", len(b), MaxBodyBytes)
	}
	return b, nil
}

// check checks a request whose hashes and wants are sorted.
func (w Witness) check() error {
	switch {
	case w.Height <= 0:
		return fmt.Errorf("height %d", w.Height)
	case w.MaxBytes == 0:
		return errors.New("an answer of no bytes")
	case len(w.Held) > MaxHeld || len(w.Wants) > MaxWants:
		return fmt.Errorf("%d hashes and %d wants, the limits are %d and %d", len(w.Held), len(w.Wants), MaxHeld, MaxWants)
	}
	for i, want := range w.Wants {
		if err := want.check(); err != nil {
			return err
		}
		if i > 0 && w.Wants[i-1].compare(want) >= 0 {
			return fmt.Errorf("the want of key %s does not ascend", nameKey(want.Key))
		}
	}
	for i := 1; i < len(w.Held); i++ {
		if bytes.Compare(w.Held[i-1][:], w.Held[i][:]) >= 0 {
			return errors.New("hashes do not ascend")
		}
	}
	return nil
}

// DecodeWitness is the inverse of Encode. The keys refer to b.
func DecodeWitness(b []byte) (Witness, error) {
	r := reader{b: b}
	if len(b) > MaxBodyBytes {
		return Witness{}, fmt.Errorf("witness request of %d bytes: %w", len(b), ErrMessage)
	}
	w := Witness{Height: r.height(), Depth: r.byte(), MaxBytes: r.uint32()}
	if n := r.count(MaxHeld, hashBytes); n > 0 {
		w.Held = make([][hashBytes]byte, 0, n)
		for range n {
			w.Held = append(w.Held, r.hash())
		}
	}
	if n := r.count(MaxWants, 1+2); n > 0 {
		w.Wants = make([]Want, 0, n)
		for range n {
			w.Wants = append(w.Wants, r.want())
		}
	}
	if err := r.end(); err != nil {
		return Witness{}, fmt.Errorf("witness request: %w", err)
	}
	if err := w.check(); err != nil {
		return Witness{}, fmt.Errorf("witness request: %w: %w", err, ErrMessage)
	}
	return w, nil
}

// Asked is how much an encoded Witness asks for.
type Asked struct {
	Wants    int
	Ranges   bool // some of the wants are for all keys of a range
	MaxBytes uint32
}

// WitnessAsks returns what an encoded request asks for, and allocates nothing. It does not judge
// the request: of one that DecodeWitness refuses, what it returns means nothing.
func WitnessAsks(b []byte) (a Asked) {
	r := reader{b: b}
	r.height()
	r.byte()
	a.MaxBytes = r.uint32()
	r.next(r.count(MaxHeld, hashBytes) * hashBytes)
	a.Wants = r.count(MaxWants, 1+2)
	for range a.Wants {
		a.Ranges = r.want().Range || a.Ranges
	}
	return a
}

// UpperRequest asks for the tree's nodes above a depth.
type UpperRequest struct {
	Height int64 // above 0
	Depth  uint8
}

// Encode encodes the request: height:u64be ‖ depth:u8.
func (u UpperRequest) Encode() []byte {
	return append(binary.BigEndian.AppendUint64(nil, uint64(u.Height)), u.Depth)
}

// DecodeUpperRequest is the inverse of Encode.
func DecodeUpperRequest(b []byte) (UpperRequest, error) {
	r := reader{b: b}
	u := UpperRequest{Height: r.height(), Depth: r.byte()}
	if err := r.end(); err != nil || u.Height == 0 {
		return UpperRequest{}, fmt.Errorf("upper request: %w", ErrMessage)
	}
	return u, nil
}

// Upper answers an UpperRequest.
type Upper struct {
	Commitment []byte // of CommitmentBytes, avlstar's encoding; its app hash is the next header's
	Bag        []byte // avlstar's encoding; its root is the commitment's
}

// Encode encodes the answer: commitment:53 ‖ bag.
func (u Upper) Encode() []byte { return slices.Concat(u.Commitment, u.Bag) }

// DecodeUpper is the inverse of Encode. What it returns refers to b, and is not decoded.
func DecodeUpper(b []byte) (Upper, error) {
	if len(b) <= CommitmentBytes { // a bag has a byte at least
		return Upper{}, fmt.Errorf("upper tree of %d bytes: %w", len(b), ErrMessage)
	}
	return Upper{Commitment: b[:CommitmentBytes:CommitmentBytes], Bag: b[CommitmentBytes:]}, nil
}

// OutlineRequest asks for the bytes [Offset, Offset+Length) of an outline, or for what there is of
// them: only a range that reaches beyond the end has a shorter answer.
type OutlineRequest struct {
	Height int64 // above 0
	Offset uint64
	Length uint32 // 1 to MaxOutlineRange
}

// Encode encodes the request: height:u64be ‖ offset:u64be ‖ length:u32be.
func (o OutlineRequest) Encode() []byte {
	b := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(o.Height)), o.Offset)
	return binary.BigEndian.AppendUint32(b, o.Length)
}

// DecodeOutlineRequest is the inverse of Encode.
func DecodeOutlineRequest(b []byte) (OutlineRequest, error) {
	r := reader{b: b}
	o := OutlineRequest{Height: r.height()}
	if f := r.next(8); f != nil {
		o.Offset = binary.BigEndian.Uint64(f)
	}
	o.Length = r.uint32()
	if err := r.end(); err != nil || o.Height == 0 || o.Length == 0 || o.Length > MaxOutlineRange {
		return OutlineRequest{}, fmt.Errorf("outline request: %w", ErrMessage)
	}
	return o, nil
}

// Of returns the part of an outline that is asked for.
func (o OutlineRequest) Of(outline []byte) []byte {
	rest := outline[min(o.Offset, uint64(len(outline))):]
	n := min(int(o.Length), len(rest))
	return rest[:n:n]
}
