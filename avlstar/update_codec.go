package avlstar

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"

	"github.com/starling-kv/starling/avlstar/record"
)

// The encoding of an update (docs/spec/updates.md). A leaf that is put has the height of its inner
// node in its record, as in a chunk.
//
//	update   = version:u8 (1) ‖ commitment:53 ‖ uvarint(number of changes) ‖ change ...
//	           ‖ uvarint(number of moved nodes) ‖ moved ... ‖ boundary
//	change   = kind:u8 ‖ body                                    in ascending key order
//	deleted  = uvarint(len key) ‖ key                            kind 0
//	put      = leaf record; height 0: none, or unchanged         kind 1
//	moved    = uvarint(place) ‖ height:u8                        in ascending order of keys
//	boundary = multiproof of one tree, or of none
const (
	updateVersion = 1

	updateDeleted = 0
	updatePut     = 1

	minUpdateChange = 1 + 1 + 1 // the shortest change deletes a key of one byte
	minMovedNode    = 1 + 1

	// maxBoundaryItems is the number of items of two paths in the highest tree that the formats
	// allow.
	maxBoundaryItems = 2 * (255 + 1)
)

// Encode returns the encoding of an update from UpdateOf or DecodeUpdate. The encoding is unique: a
// decoded update encodes to the bytes that it was decoded from.
func (u Update) Encode() []byte {
	size := 1 + CommitmentBytes + 2*binary.MaxVarintLen64 + len(u.Boundary)
	for i := range u.Changes {
		c := &u.Changes[i]
		size += 1 + int(RecordBytes(len(c.Key), len(c.Value)))
	}
	for _, m := range u.Moved {
		size += 2 + bits.Len64(m.Place)/7
	}
	b := append(append(make([]byte, 0, size), updateVersion), u.To.Encode()...)
	b = binary.AppendUvarint(b, uint64(len(u.Changes)))
	for i := range u.Changes {
		if c := &u.Changes[i]; c.Value == nil {
			b = appendKey(append(b, updateDeleted), c.Key)
		} else {
			b = record.Append(append(b, updatePut), Leaf{Key: c.Key, Value: c.Value, Height: c.Height})
		}
	}
	b = binary.AppendUvarint(b, uint64(len(u.Moved)))
	for _, m := range u.Moved {
		b = append(binary.AppendUvarint(b, m.Place), m.Height)
	}
	return append(b, u.Boundary...)
}

func appendKey(b, key []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(key))), key...)
}

// DecodeUpdate decodes the result of Encode, and refuses every other encoding. It checks only the
// form; Replay checks the state that the update leads to. The result refers to b and takes at most
// 20 times the length of b in addition. All errors wrap ErrInvalidUpdate.
func DecodeUpdate(b []byte) (Update, error) {
	return decodeUpdateWithin(b, func(Commitment) (changes, moved uint64, err error) { return math.MaxUint64, math.MaxUint64, nil })
}

// DecodeUpdateFrom decodes an update from a stranger, from the version with a commitment to the one
// with an app hash. The block makes at most a number of changes (most) in all ranges. The function
// takes no memory for an update to another version (ErrOtherState), nor for one with more changes,
// or with more moved nodes than such a block can move (ErrInvalidUpdate). If the version before is
// empty, the number of changes is not limited: genesis can put any number of keys.
func DecodeUpdateFrom(from Commitment, appHash Hash, most uint64, b []byte) (Update, error) {
	return decodeUpdateWithin(b, func(to Commitment) (changes, moved uint64, err error) {
		if got := to.AppHash(); got != appHash {
			return 0, 0, fmt.Errorf("%w: app hash %s, not %s", ErrOtherState, got, appHash)
		}
		changes = most
		if from.Root == emptyStub {
			changes = math.MaxUint64
		}
		return changes, maxMoved(most, from.Root.Height, to.Root.Height), nil
	})
}

// maxMoved returns the most nodes that m changes move in a tree, by its heights before and after
// (docs/spec/updates.md#how-long-an-update-can-be). Changes outside of a range can move nodes in
// it, so m is that of the whole block.
func maxMoved(m uint64, before, after uint8) uint64 {
	below := max(int(before), int(after)) - (bits.Len64(m) - 1) // the paths share the nodes above
	return 3 * m * uint64(2+max(below, 0))
}

// updateLimits returns the most changes and moved nodes of an update to a version.
type updateLimits = func(to Commitment) (changes, moved uint64, err error)

func decodeUpdateWithin(b []byte, limits updateLimits) (Update, error) {
	u, err := decodeUpdate(b, limits)
	switch {
	case errors.Is(err, ErrOtherState):
		return Update{}, err
	case err != nil:
		return Update{}, fmt.Errorf("%w: %w", ErrInvalidUpdate, err)
	}
	return u, nil
}

func decodeUpdate(b []byte, limits updateLimits) (u Update, err error) {
	switch {
	case len(b) > 0 && b[0] != updateVersion:
		return u, fmt.Errorf("version %d, only %d is known", b[0], updateVersion)
	case len(b) < 1+CommitmentBytes:
		return u, record.ErrShort
	}
	if u.To, err = DecodeCommitment(b[1 : 1+CommitmentBytes]); err != nil {
		return u, err
	}
	maxChanges, maxMoved, err := limits(u.To)
	if err != nil {
		return u, err
	}
	n, b, err := numberOf("changes", b[1+CommitmentBytes:], minUpdateChange)
	switch {
	case err != nil:
		return u, err
	case n > maxChanges:
		return u, fmt.Errorf("%d changes, a block makes at most %d", n, maxChanges)
	}
	u.Changes = make([]UpdateChange, n)
	for i := range u.Changes {
		if b, err = u.Changes[i].decode(b); err == nil && i > 0 && bytes.Compare(u.Changes[i].Key, u.Changes[i-1].Key) <= 0 {
			err = fmt.Errorf("key %s does not ascend", abbreviate(u.Changes[i].Key))
		}
		if err != nil {
			return u, fmt.Errorf("change %d: %w", i, err)
		}
	}
	n, b, err = numberOf("moved nodes", b, minMovedNode)
	switch {
	case err != nil:
		return u, err
	case n > maxMoved:
		return u, fmt.Errorf("%d moved nodes, a block moves at most %d", n, maxMoved)
	}
	u.Moved = make([]MovedNode, n)
	for i := range u.Moved {
		if b, err = u.Moved[i].decode(b); err == nil {
			err = u.Moved[i].check(u.Moved[:i])
		}
		if err != nil {
			return u, fmt.Errorf("moved node %d: %w", i, err)
		}
	}
	if err := checkBoundary(b); err != nil {
		return u, fmt.Errorf("boundary proof: %w", err)
	}
	u.Boundary = b
	return u, nil
}

// numberOf decodes the number of items in a list. Each item takes at least `least` bytes.
func numberOf(what string, b []byte, least int) (n uint64, rest []byte, err error) {
	n, b, err = record.Uvarint(b)
	switch {
	case err != nil:
		return 0, nil, fmt.Errorf("number of %s: %w", what, err)
	case n > uint64(len(b)/least):
		return 0, nil, fmt.Errorf("%d %s in %d bytes", n, what, len(b))
	}
	return n, b, nil
}

func (c *UpdateChange) decode(b []byte) (rest []byte, err error) {
	if len(b) < 2 {
		return nil, record.ErrShort
	}
	kind, b := b[0], b[1:]
	switch kind {
	case updateDeleted:
		c.Key, b, err = record.Field(b, MaxKeyBytes)
	case updatePut:
		var l Leaf
		l, b, err = record.Decode(b)
		c.Key, c.Value, c.Height = l.Key, l.Value, l.Height
	default:
		return nil, fmt.Errorf("unknown kind %d", kind)
	}
	return b, err
}

func (m *MovedNode) decode(b []byte) (rest []byte, err error) {
	if m.Place, b, err = record.Uvarint(b); err != nil {
		return nil, err
	}
	if len(b) == 0 {
		return nil, record.ErrShort
	}
	m.Height = b[0]
	return b[1:], nil
}

// checkBoundary checks, without allocating memory, that b encodes a multiproof that can be a
// boundary proof: it has at most one tree, with a limited number of items, however long b is.
func checkBoundary(b []byte) error {
	switch {
	case len(b) == 0:
		return record.ErrShort
	case b[0] != multiproofVersion:
		return fmt.Errorf("version %d, only %d is known", b[0], multiproofVersion)
	case len(b) == 1:
		return nil
	}
	n, b, err := record.Uvarint(b[1:])
	switch {
	case err != nil:
		return fmt.Errorf("number of items: %w", err)
	case n < 1 || n > maxBoundaryItems:
		return fmt.Errorf("%d items, must be 1 to %d", n, maxBoundaryItems)
	}
	for i := range n {
		if _, b, err = decodeMultiproofItem(b, i == 0); err != nil {
			return fmt.Errorf("item %d: %w", i, err)
		}
	}
	if len(b) > 0 {
		return fmt.Errorf("%d extra bytes after its tree", len(b))
	}
	return nil
}
