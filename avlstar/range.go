package avlstar

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
)

// KV is a key and its value.
type KV struct{ Key, Value []byte }

// KeyEntry is a key with the length and the SHA-256 of its value. A proof needs nothing else of the
// value.
type KeyEntry struct {
	Key        []byte
	ValueBytes int
	ValueHash  Hash
}

// KeyEntryOf returns the KeyEntry of a key and its value.
func KeyEntryOf(key, value []byte) KeyEntry { return KeyEntry{key, len(value), sha256.Sum256(value)} }

// RangeProof proves that a list of entries is complete for a range. Tree has the tree's leaves in
// the range, with stubs around them (range_codec.go). Map is the same operator as in Proof. Tree is
// empty for the empty tree.
//
//	  stub   stub  neighbour │ result  result  ...  result │ neighbour  stub   stub
//	└─── below start ───────┘ └──── start <= key < end ───┘ └─── end or next ────┘
//
// The list is complete because there are only results between the two neighbours, and all items
// together hash to the AppHash.
type RangeProof struct{ Tree, Map []byte }

// ProveRange answers a range query. It returns at most limit entries with keys in [start, end), and
// their proof. An empty bound is open. next is the first key that limit cut off, from which a
// client continues; it is nil if the range is exhausted. It is an error if limit is below 1, or if
// start is not below end. The entries must not be modified.
func (v *Version) ProveRange(start, end []byte, limit int) (entries []KV, next []byte, p RangeProof, err error) {
	if err := checkRange(start, end, limit); err != nil {
		return nil, nil, RangeProof{}, fmt.Errorf("avlstar: cannot prove: %w", err)
	}
	for kv, err := range v.Ascend(openBound(start), openBound(end)) {
		if err != nil {
			return nil, nil, RangeProof{}, fmt.Errorf("avlstar: cannot prove: %w", err)
		}
		if len(entries) == limit {
			next = bytes.Clone(kv.Key)
			break
		}
		entries = append(entries, KV{bytes.Clone(kv.Key), bytes.Clone(kv.Value)})
	}
	tree, err := v.proveRange(start, end, next)
	if err != nil {
		return nil, nil, RangeProof{}, fmt.Errorf("avlstar: cannot prove: %w", err)
	}
	return entries, next, RangeProof{Tree: tree, Map: v.proveMap()}, nil
}

// VerifyRange checks that under appHash the list of entries is complete for [start, end) or, if
// next is set, for [start, next), and that next is the first key after them and below end. An empty
// bound is open; an empty next means that there is none.
//
// If next is set, a response may have fewer entries than limit, because servers also limit the
// bytes of a response. It must have at least one entry and not more than limit, so that a client
// that continues from next always advances.
func VerifyRange(appHash Hash, start, end []byte, limit int, entries []KV, next []byte, p RangeProof) error {
	if len(entries) > limit { // check before the entries are hashed
		return fmt.Errorf("%w of a range: %d entries, more than the limit of %d", ErrInvalidProof, len(entries), limit)
	}
	keys := make([]KeyEntry, len(entries))
	for i, e := range entries {
		keys[i] = KeyEntryOf(e.Key, e.Value)
	}
	return VerifyKeys(appHash, start, end, limit, keys, next, p)
}

// VerifyKeys does what VerifyRange does for a response without values. The proof is the same.
func VerifyKeys(appHash Hash, start, end []byte, limit int, entries []KeyEntry, next []byte, p RangeProof) error {
	if err := verifyRange(appHash, start, end, limit, entries, next, p); err != nil {
		return fmt.Errorf("%w of a range: %w", ErrInvalidProof, err)
	}
	return nil
}

func verifyRange(appHash Hash, start, end []byte, limit int, entries []KeyEntry, next []byte, p RangeProof) error {
	if err := checkRange(start, end, limit); err != nil {
		return err
	}
	if err := checkAnswer(start, end, limit, entries, next); err != nil {
		return err
	}
	root, err := verifyMap(appHash, p.Map)
	if err != nil {
		return err
	}
	if len(p.Tree) == 0 {
		if len(entries) != 0 {
			return errors.New("no tree, but entries")
		}
		if root != emptyRoot {
			return errors.New("no tree, but the state is not empty")
		}
		return nil
	}
	t, err := decodeRangeTree(p.Tree, entries)
	if err != nil {
		return err
	}
	if err := checkComplete(t.items, start, end, next); err != nil {
		return err
	}
	if err := checkCoarse(t.items); err != nil {
		return err
	}
	rebuilt, err := t.rebuild()
	if err != nil {
		return err
	}
	if rebuilt.Hash != root {
		return errors.New("the items do not hash to the state's root")
	}
	// Only the other leaf of the map contains the height and the bytes of the root. Without this
	// check, the value length of a neighbour that is the tree's only leaf could be forged.
	c := Commitment{ChunkBytes: t.chunkBytes, Chunks: t.chunks, Root: rebuilt}
	if c.AppHash() != appHash {
		return errors.New("height, bytes or number of chunks are not those of the app hash")
	}
	return nil
}

// checkRange checks a query.
func checkRange(start, end []byte, limit int) error {
	if limit < 1 {
		return fmt.Errorf("limit %d, must be 1 or more", limit)
	}
	if len(end) != 0 && bytes.Compare(start, end) >= 0 {
		return errors.New("the range is empty: start must be below end")
	}
	return nil
}

// checkAnswer checks a response against the query, as far as possible without the proof.
func checkAnswer(start, end []byte, limit int, entries []KeyEntry, next []byte) error {
	if len(entries) > limit {
		return fmt.Errorf("%d entries, more than the limit of %d", len(entries), limit)
	}
	last := start // the first key may equal start
	for i, e := range entries {
		if err := checkKey(e.Key); err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		if e.ValueBytes < 1 || e.ValueBytes > MaxValueBytes {
			return fmt.Errorf("entry %d: value of %d bytes, values have 1 to %d", i, e.ValueBytes, MaxValueBytes)
		}
		if c := bytes.Compare(last, e.Key); c > 0 || c == 0 && i > 0 {
			return fmt.Errorf("entry %d is out of order or below start", i)
		}
		last = e.Key
	}
	if len(next) != 0 {
		if len(entries) == 0 {
			return errors.New("a next key, but no entries: a client that continues would not advance")
		}
		if bytes.Compare(last, next) >= 0 {
			return errors.New("the next key is not above the last entry")
		}
		last = next
	}
	if len(end) != 0 && len(entries) != 0 && bytes.Compare(last, end) >= 0 {
		return errors.New("an entry or the next key is not below end")
	}
	return nil
}

// checkComplete checks that the order is stub* neighbour? result* neighbour? stub*, that stubs are
// only outside the neighbours, that the left neighbour is below start, and that the right one is
// next or, without next, not below end. If the items are leaves and stubs of the tree in key order,
// then nothing between the neighbours was left out.
func checkComplete(items []rangeItem, start, end, next []byte) error {
	i := 0
	skip := func(kind byte) {
		for i < len(items) && items[i].kind == kind {
			i++
		}
	}
	skip(stubKind)
	if i < len(items) && items[i].kind == neighbourKind && bytes.Compare(items[i].key, start) < 0 {
		i++
	} else if i > 0 {
		return errors.New("no neighbour below start, but stubs")
	}
	skip(resultKind)
	switch {
	case i < len(items) && items[i].kind == neighbourKind:
		key := items[i].key
		i++
		if len(next) != 0 {
			if !bytes.Equal(key, next) {
				return errors.New("the neighbour after the entries is not the next key")
			}
		} else if len(end) == 0 || bytes.Compare(key, end) < 0 {
			return errors.New("the neighbour after the entries lies in the range")
		}
		skip(stubKind)
	case len(next) != 0:
		return errors.New("a next key, but no neighbour after the entries")
	}
	if i != len(items) {
		return fmt.Errorf("item %d is out of place", i)
	}
	return nil
}

// checkCoarse refuses a stub that was split into the stubs of its two children, which would be a
// second proof of the same fact. Two stubs are siblings if the boundary between them is lower than
// the next boundary on either side (a Cartesian tree).
func checkCoarse(items []rangeItem) error {
	for i := 1; i < len(items); i++ {
		if items[i-1].kind != stubKind || items[i].kind != stubKind {
			continue
		}
		h := items[i].boundary
		if (i == 1 || items[i-1].boundary > h) && (i+1 == len(items) || items[i+1].boundary > h) {
			return fmt.Errorf("items %d and %d are the halves of one stub", i-1, i)
		}
	}
	return nil
}

// openBound returns nil, which is open, for an empty bound.
func openBound(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return b
}
