package dsm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/wire"
)

// Transport methods between the nodes of a sharded state (docs/spec/transport.md#methods). Storage
// nodes answer all of them; validators answer Witness and Upper.
const (
	MethodRanges  = 12 // ranges and heights that a node has
	MethodWitness = 13 // multiproof that opens the wants
	MethodUpper   = 14 // commitment and upper nodes of the tree
	MethodUpdate  = 15 // part of a block's changes in a range
	MethodOutline = 20 // upper tree over a node's ranges, of a snapshot
	MethodMap     = 21 // newest map of the ranges that a node has
)

// Limits of the messages.
const (
	MaxBodyBytes = 1 << 20 // of a request, as limited by the transport
	MaxClaims    = 1024    // ranges in an answer to MethodRanges
	MaxWants     = 16_384  // in a request for a witness
	MaxHeld      = 16_384  // hashes in a request for a witness
	// MaxUpdateBytes is the maximum length of an encoded update. The update of any block that
	// CometBFT allows fits (docs/spec/updates.md). Nodes may set a lower limit.
	MaxUpdateBytes = 256 << 20
	// MaxChanges is the maximum number of records that a block changes. It names at most 65,536
	// keys, and changes two records for each at most (docs/spec/updates.md). Twice that is
	// allowed, because a storage node that refused a block would stay behind it.
	MaxChanges = 4 << 16
	// MaxPartBytes is the maximum length of a part of an update in one request.
	MaxPartBytes = MaxBodyBytes - 16<<10
	// MaxOutlineRange is the maximum length of a part of an outline in one answer.
	MaxOutlineRange = 8 << 20

	// MaxMapBytes is the maximum length of a map of the ranges.
	MaxMapBytes = MaxPartBytes
	// MaxMapAnswerBytes is the maximum length of an answer to MethodMap.
	MaxMapAnswerBytes = 8 + MaxMapBytes

	MaxClaimsBytes    = 1 + 2 + MaxClaims*(2*(2+avlstar.MaxKeyBytes)+4*8)
	UpdateAnswerBytes = 8 + 8 + 4

	claimsVersion      = 1 // of ranges that do not overlap
	overlappingVersion = 2
	hashBytes          = 32
)

// ErrMessage is wrapped by the errors of all decoders: the bytes are malformed.
var ErrMessage = wire.ErrMalformed

// Claim describes one range that a node keeps, as reported by that node. Claims are unverified:
// they are hints that decide which node is asked first.
type Claim struct {
	Range          avlstar.KeyRange
	Oldest, Newest int64 // heights at which it serves witnesses; 0, 0: none
	Durable        int64 // height up to which its updates are logged and synced; 0: none
	// Needs is the height of the update that the node waits for, above Durable. 0: the node fetches
	// chunks and accepts no updates.
	Needs int64
}

func (c Claim) check() error {
	switch {
	case c.Oldest < 0 || c.Newest < c.Oldest || (c.Oldest == 0) != (c.Newest == 0):
		return fmt.Errorf("heights from %d to %d", c.Oldest, c.Newest)
	case c.Durable < 0 || c.Needs < 0 || c.Needs != 0 && c.Needs <= c.Durable:
		return fmt.Errorf("durable at %d and waiting for %d", c.Durable, c.Needs)
	}
	return checkRange(c.Range)
}

// EncodeClaims encodes claims that are in key order, by the first key and then by the end. It fails
// if they do not ascend, if there are more than MaxClaims, or if the heights of a claim are
// inconsistent. The version is 2 if ranges overlap, which they do while ranges are being divided or
// merged, and otherwise 1.
//
//	version:u8 ‖ n:u16be ‖ (range ‖ oldest:u64be ‖ newest:u64be ‖ durable:u64be ‖ needs:u64be) × n
//	range = key ‖ key, empty: open;  key = length:u16be ‖ bytes
func EncodeClaims(claims []Claim) ([]byte, error) {
	version := byte(claimsVersion)
	if overlap(claims) {
		version = overlappingVersion
	}
	if err := checkClaims(claims); err != nil {
		return nil, fmt.Errorf("dsm: claims: %w", err)
	}
	b := binary.BigEndian.AppendUint16([]byte{version}, uint16(len(claims)))
	for _, c := range claims {
		b = appendRange(b, c.Range)
		for _, h := range []int64{c.Oldest, c.Newest, c.Durable, c.Needs} {
			b = binary.BigEndian.AppendUint64(b, uint64(h))
		}
	}
	return b, nil
}

// checkClaims checks the number of claims, each claim, and the order.
func checkClaims(claims []Claim) error {
	if len(claims) > MaxClaims {
		return fmt.Errorf("%d ranges, the limit is %d", len(claims), MaxClaims)
	}
	for i, c := range claims {
		if err := c.check(); err != nil {
			return fmt.Errorf("range %d: %w", i, err)
		}
		if i > 0 && CompareRanges(claims[i-1].Range, c.Range) >= 0 {
			return fmt.Errorf("%v does not follow %v", c.Range, claims[i-1].Range)
		}
	}
	return nil
}

// overlap reports whether two ranges of ascending claims overlap.
func overlap(claims []Claim) bool {
	for i := 1; i < len(claims); i++ {
		if !before(claims[i-1].Range, claims[i].Range) {
			return true
		}
	}
	return false
}

// CompareRanges orders ranges by their first keys, and then by their ends.
func CompareRanges(a, b avlstar.KeyRange) int {
	if c := bytes.Compare(a.First, b.First); c != 0 {
		return c
	}
	switch open := len(a.After) == 0; {
	case open && len(b.After) == 0:
		return 0
	case open:
		return 1
	case len(b.After) == 0:
		return -1
	}
	return bytes.Compare(a.After, b.After)
}

// before reports whether all keys of r are below those of next.
func before(r, next avlstar.KeyRange) bool {
	return len(r.After) > 0 && bytes.Compare(r.After, next.First) <= 0
}

// DecodeClaims is the inverse of EncodeClaims. The keys refer to b.
func DecodeClaims(b []byte) ([]Claim, error) {
	r := newReader(b)
	version := r.Byte("version")
	if r.Err() == nil && version != claimsVersion && version != overlappingVersion {
		return nil, fmt.Errorf("claims: version %d: %w", version, ErrMessage)
	}
	n := r.Count16("ranges", MaxClaims, 2*2+4*8)
	claims := make([]Claim, 0, n)
	for range n {
		claims = append(claims, Claim{Range: r.keyRange(), Oldest: r.Height("oldest"), Newest: r.Height("newest"),
			Durable: r.Height("durable"), Needs: r.Height("needs")})
	}
	if err := r.End(); err != nil {
		return nil, fmt.Errorf("claims: %w", err)
	}
	if err := checkClaims(claims); err != nil {
		return nil, fmt.Errorf("claims: %w: %w", err, ErrMessage)
	}
	if overlap(claims) != (version == overlappingVersion) {
		return nil, fmt.Errorf("claims: version %d does not fit the ranges: %w", version, ErrMessage)
	}
	return claims, nil
}

// Map is the body of a request for a newer map of the ranges, and the answer to it. In a request,
// Version is that of the requester's map, and Text is empty unless the requester offers its map. In
// an answer, Version is that of the answering node's map, and Text is empty unless that map is
// newer. The map proves itself by its signature.
//
//	version:u64be ‖ text
type Map struct {
	Version uint64
	Text    []byte
}

// Encode encodes a request or an answer.
func (m Map) Encode() []byte {
	return append(binary.BigEndian.AppendUint64(nil, m.Version), m.Text...)
}

// DecodeMap is the inverse of Encode. The text refers to b.
func DecodeMap(b []byte) (Map, error) {
	if len(b) < 8 || len(b) > MaxMapAnswerBytes {
		return Map{}, fmt.Errorf("map of the ranges: %d bytes: %w", len(b), ErrMessage)
	}
	return Map{binary.BigEndian.Uint64(b), b[8:]}, nil
}

// Witness asks for a multiproof at one height that opens wants below the nodes that the requester
// already has (docs/spec/multiproofs.md#what-a-multiproof-opens). An empty answer means that the
// multiproof would be longer than MaxBytes; the requester must ask for less at once. A node that
// does not have the height answers "gone".
type Witness struct {
	Height   int64             // above 0
	Depth    uint8             // number of inner nodes on each path that the requester has
	MaxBytes uint32            // of the answer, above 0; the answering node can set a lower limit
	Held     [][hashBytes]byte // hashes of the requester's stubs, in any order, without duplicates
	Wants    []avlstar.Want    // in any order
}

// Encode encodes the request. It fails if a field exceeds its limits or if the body would be too
// long.
//
//	height:u64be ‖ depth:u8 ‖ max bytes:u32be ‖ n:u32be ‖ hash:32 × n ‖ m:u32be ‖ want × m
//	want = flags:u8 ‖ key [‖ after], empty: open     flags: 1 a range, which has after; 2 next; 4 deleted
//
// Hashes are in ascending order. Wants ascend by key, then flags, then after.
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
		b = appendKey(append(b, flagsOf(want)), want.Key)
		if want.Range {
			b = appendKey(b, want.After)
		}
	}
	if len(b) > MaxBodyBytes {
		return nil, fmt.Errorf("dsm: witness request of %d bytes, the limit is %d", len(b), MaxBodyBytes)
	}
	return b, nil
}

// WitnessBytes returns the length of an encoded request for wants with a number of held hashes.
func WitnessBytes(wants []avlstar.Want, held int) int {
	n := 8 + 1 + 4 + 4 + 4 + held*hashBytes
	for _, w := range wants {
		n += wantBytes(w)
	}
	return n
}

// check checks a request whose hashes and wants are sorted.
func (w Witness) check() error {
	switch {
	case w.Height <= 0:
		return fmt.Errorf("height %d", w.Height)
	case w.MaxBytes == 0:
		return errors.New("the maximum length of the answer is 0")
	case len(w.Held) > MaxHeld || len(w.Wants) > MaxWants:
		return fmt.Errorf("%d hashes and %d wants, the limits are %d and %d", len(w.Held), len(w.Wants), MaxHeld, MaxWants)
	}
	for i, want := range w.Wants {
		if err := checkWant(want); err != nil {
			return err
		}
		if i > 0 && compareWants(w.Wants[i-1], want) >= 0 {
			return fmt.Errorf("the want of key %s does not ascend", want.Key)
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
	r := newReader(b)
	if len(b) > MaxBodyBytes {
		return Witness{}, fmt.Errorf("witness request of %d bytes: %w", len(b), ErrMessage)
	}
	w := Witness{Height: r.Height("height"), Depth: r.Byte("depth"), MaxBytes: r.Uint32("max bytes")}
	if n := r.Count32("hashes", MaxHeld, hashBytes); n > 0 {
		w.Held = make([][hashBytes]byte, 0, n)
		for range n {
			w.Held = append(w.Held, r.Hash("hash"))
		}
	}
	if n := r.Count32("wants", MaxWants, 1+2); n > 0 {
		w.Wants = make([]avlstar.Want, 0, n)
		for range n {
			w.Wants = append(w.Wants, r.want())
		}
	}
	if err := r.End(); err != nil {
		return Witness{}, fmt.Errorf("witness request: %w", err)
	}
	if err := w.check(); err != nil {
		return Witness{}, fmt.Errorf("witness request: %w: %w", err, ErrMessage)
	}
	return w, nil
}

// Asked summarizes the size of an encoded Witness request.
type Asked struct {
	Wants    int
	Ranges   bool // some wants ask for all keys of a range
	MaxBytes uint32
}

// WitnessAsks returns the size of an encoded request without allocating. It does not validate the
// request: if DecodeWitness would refuse it, the result is meaningless.
func WitnessAsks(b []byte) (a Asked) {
	r := reader{wire.NewReader(b)}
	r.Height("height")
	r.Byte("depth")
	a.MaxBytes = r.Uint32("max bytes")
	r.Take("hashes", r.Count32("hashes", MaxHeld, hashBytes)*hashBytes)
	a.Wants = r.Count32("wants", MaxWants, 1+2)
	for range a.Wants {
		a.Ranges = r.want().Range || a.Ranges
	}
	return a
}

// UpperRequest asks for the tree's nodes above Depth.
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
	r := newReader(b)
	u := UpperRequest{Height: r.Height("height"), Depth: r.Byte("depth")}
	if err := r.End(); err != nil || u.Height == 0 {
		return UpperRequest{}, fmt.Errorf("upper request: %w", ErrMessage)
	}
	return u, nil
}

// Upper answers an UpperRequest.
type Upper struct {
	Commitment []byte // avlstar's encoding; its app hash must match the next header
	Multiproof []byte // avlstar's encoding; its root must match the commitment's
}

// Encode encodes the answer: commitment:53 ‖ multiproof.
func (u Upper) Encode() []byte { return slices.Concat(u.Commitment, u.Multiproof) }

// DecodeUpper is the inverse of Encode. The result refers to b; its fields are not decoded.
func DecodeUpper(b []byte) (Upper, error) {
	if len(b) <= avlstar.CommitmentBytes { // a multiproof has at least one byte
		return Upper{}, fmt.Errorf("upper tree of %d bytes: %w", len(b), ErrMessage)
	}
	return Upper{Commitment: b[:avlstar.CommitmentBytes:avlstar.CommitmentBytes], Multiproof: b[avlstar.CommitmentBytes:]}, nil
}

// OutlineRequest asks for the bytes [Offset, Offset+Length) of an outline. The answer is shorter
// only if the outline ends before Offset+Length.
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
	r := newReader(b)
	o := OutlineRequest{Height: r.Height("height"), Offset: r.Uint64("offset"), Length: r.Uint32("length")}
	if err := r.End(); err != nil || o.Height == 0 || o.Length == 0 || o.Length > MaxOutlineRange {
		return OutlineRequest{}, fmt.Errorf("outline request: %w", ErrMessage)
	}
	return o, nil
}

// Of returns the part of an outline that the request asks for.
func (o OutlineRequest) Of(outline []byte) []byte {
	rest := outline[min(o.Offset, uint64(len(outline))):]
	n := min(int(o.Length), len(rest))
	return rest[:n:n]
}
