package avlstar

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/starling-kv/starling/avlstar/record"
)

// The encoding of an update (docs/spec/updates.md). A leaf that is put has the height of its inner
// node in its record, as in a chunk.
//
//	update  = version:u8 (1) ‖ commitment:53 ‖ uvarint(number of entries) ‖ entry ... ‖ seam
//	entry   = kind:u8 ‖ body                                    in ascending key order
//	deleted = uvarint(len key) ‖ key                            kind 0
//	put     = leaf record; height 0: none, or as it was         kind 1
//	height  = height:u8 ‖ uvarint(len key) ‖ key                kind 2
//	seam    = bag of one tree, or of none
const (
	updateVersion = 1

	updateDeleted = 0
	updatePut     = 1
	updateHeight  = 2

	minUpdateEntry = 1 + 1 + 1 // the shortest is a deleted key of one byte

	// maxSeamItems is the number of items of two ways in the highest tree that the formats allow.
	maxSeamItems = 2 * (255 + 1)
)

// Encode returns the encoding of what UpdateOf or DecodeUpdate returned. It has one: that of an
// update which was decoded is equal to the bytes it was decoded from.
func (u Update) Encode() []byte {
	size := 1 + CommitmentBytes + binary.MaxVarintLen64 + len(u.Seam)
	for _, c := range u.Changes {
		size += 1 + int(RecordBytes(len(c.Key), len(c.Value)))
	}
	for _, h := range u.Heights {
		size += 1 + 1 + 2 + len(h.Key)
	}
	b := append(append(make([]byte, 0, size), updateVersion), u.To.Encode()...)
	b = binary.AppendUvarint(b, uint64(u.entries()))
	changes, heights := u.Changes, u.Heights
	for len(changes)+len(heights) > 0 {
		order := compareNext(changes, heights)
		switch {
		case order > 0:
			b = appendKey(append(b, updateHeight, heights[0].Height), heights[0].Key)
		case changes[0].Value == nil:
			b = appendKey(append(b, updateDeleted), changes[0].Key)
		default:
			l := Leaf{Key: changes[0].Key, Value: changes[0].Value}
			if order == 0 {
				l.Height = heights[0].Height
			}
			b = record.Append(append(b, updatePut), l)
		}
		if order <= 0 {
			changes = changes[1:]
		}
		if order >= 0 {
			heights = heights[1:]
		}
	}
	return append(b, u.Seam...)
}

// entries returns the number of keys.
func (u *Update) entries() (n int) {
	changes, heights := u.Changes, u.Heights
	for ; len(changes)+len(heights) > 0; n++ {
		order := compareNext(changes, heights)
		if order <= 0 {
			changes = changes[1:]
		}
		if order >= 0 {
			heights = heights[1:]
		}
	}
	return n
}

func appendKey(b, key []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(key))), key...)
}

// DecodeUpdate decodes what Encode returns, and refuses every other encoding. It checks the form:
// what the update leads to, Replay finds out. The result refers to b; beside that, it takes at most
// 16 times the length of b. All errors wrap ErrInvalidUpdate.
func DecodeUpdate(b []byte) (Update, error) {
	u, err := decodeUpdate(b)
	if err != nil {
		return Update{}, fmt.Errorf("%w: %w", ErrInvalidUpdate, err)
	}
	return u, nil
}

func decodeUpdate(b []byte) (u Update, err error) {
	switch {
	case len(b) > 0 && b[0] != updateVersion:
		return u, fmt.Errorf("version %d, only %d is known", b[0], updateVersion)
	case len(b) < 1+CommitmentBytes:
		return u, record.ErrShort
	}
	if u.To, err = DecodeCommitment(b[1 : 1+CommitmentBytes]); err != nil {
		return u, err
	}
	n, entries, err := record.Uvarint(b[1+CommitmentBytes:])
	switch {
	case err != nil:
		return u, fmt.Errorf("number of entries: %w", err)
	case n > uint64(len(entries))/minUpdateEntry:
		return u, fmt.Errorf("%d entries in %d bytes", n, len(entries))
	}
	// They are read twice, so that what is allocated is what they need.
	changes, heights, last := 0, 0, []byte(nil)
	rest := entries
	for i := range n {
		var e updateEntry
		if e, rest, err = decodeUpdateEntry(rest); err == nil && i > 0 && bytes.Compare(e.Key, last) <= 0 {
			err = fmt.Errorf("key %s does not ascend", abbreviate(e.Key))
		}
		if err != nil {
			return u, fmt.Errorf("entry %d: %w", i, err)
		}
		if last = e.Key; e.kind != updateHeight {
			changes++
		}
		if e.Height > 0 {
			heights++
		}
	}
	if err := checkSeam(rest); err != nil {
		return u, fmt.Errorf("seam: %w", err)
	}
	u.Changes, u.Heights, u.Seam = make([]Change, 0, changes), make([]KeyHeight, 0, heights), rest
	for range n {
		var e updateEntry
		if e, entries, err = decodeUpdateEntry(entries); err != nil {
			return u, err
		}
		if e.kind != updateHeight {
			u.Changes = append(u.Changes, Change{e.Key, e.Value})
		}
		if e.Height > 0 {
			u.Heights = append(u.Heights, KeyHeight{e.Key, e.Height})
		}
	}
	return u, nil
}

// updateEntry is an entry. Its value is nil unless it is put.
type updateEntry struct {
	kind byte
	Leaf
}

func decodeUpdateEntry(b []byte) (e updateEntry, rest []byte, err error) {
	if len(b) < 2 {
		return e, nil, record.ErrShort
	}
	switch e.kind, b = b[0], b[1:]; e.kind {
	case updateDeleted:
		e.Key, b, err = record.Field(b, MaxKeyBytes)
	case updatePut:
		e.Leaf, b, err = record.Decode(b)
	case updateHeight:
		if e.Height = b[0]; e.Height == 0 {
			return e, nil, fmt.Errorf("no inner node has height 0")
		}
		e.Key, b, err = record.Field(b[1:], MaxKeyBytes)
	default:
		return e, nil, fmt.Errorf("unknown kind %d", e.kind)
	}
	return e, b, err
}

// checkSeam checks that b is the encoding of a bag that can be a seam, and allocates nothing: such
// a bag has one tree at most, and that a limited number of items, however long b is.
func checkSeam(b []byte) error {
	switch {
	case len(b) == 0:
		return record.ErrShort
	case b[0] != bagVersion:
		return fmt.Errorf("version %d, only %d is known", b[0], bagVersion)
	case len(b) == 1:
		return nil
	}
	n, b, err := record.Uvarint(b[1:])
	switch {
	case err != nil:
		return fmt.Errorf("number of items: %w", err)
	case n < 1 || n > maxSeamItems:
		return fmt.Errorf("%d items, it has 1 to %d", n, maxSeamItems)
	}
	for i := range n {
		if _, b, err = decodeBagItem(b, i == 0); err != nil {
			return fmt.Errorf("item %d: %w", i, err)
		}
	}
	if len(b) > 0 {
		return fmt.Errorf("%d bytes behind its tree", len(b))
	}
	return nil
}
