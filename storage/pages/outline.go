package pages

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/avlstar/record"
)

// The outline of a state (avlstar.PageStub) is on disk beside its leaves, and changes with each
// flush. So a start reads the stubs of all pages instead of all leaves.
//
//	00                  → version:u8 ‖ height:u64be ‖ number of leaves:u64be
//	01                  → the page with the least key of the tree
//	01 ‖ first key      → another page
//
// where a page is boundary:u8 ‖ height:u8 ‖ uvarint(bytes) ‖ hash:32. An outline is not trusted: its
// tree has the app hash of the state, or is not used. A program that does not write it, or writes
// another version, leaves the height of an older state behind.
const (
	outlineVersion = 1
	headerRecord   = 0
	pageRecord     = 1
)

// AddOutline calls add for the outline records that changed, with an empty record for a page that
// is gone. height is that of the state, leaves its number of leaves, and changes are those of its
// outline.
func AddOutline(add func(key, record []byte), height int64, leaves uint64, changes iter.Seq[avlstar.PageStub]) {
	header := binary.BigEndian.AppendUint64([]byte{outlineVersion}, uint64(height))
	add([]byte{headerRecord}, binary.BigEndian.AppendUint64(header, leaves))
	var key, rec []byte
	for p := range changes {
		key = append(append(key[:0], pageRecord), p.First...)
		if rec = rec[:0]; !p.Gone() {
			rec = binary.AppendUvarint(append(rec, p.Boundary, p.Height), p.Bytes)
			rec = append(rec, p.Hash[:]...)
		}
		add(key, rec)
	}
}

// OutlineReader yields outline records, like storage.Zone.
type OutlineReader interface {
	Outline() iter.Seq2[record.Leaf, error]
}

// ReadOutline returns the outline of the state at height and its number of leaves; false if there
// is none. An error is yielded last.
func ReadOutline(zone OutlineReader, height int64) (leaves uint64, pages iter.Seq2[avlstar.PageStub, error], ok bool) {
	for l, err := range zone.Outline() {
		if err != nil || len(l.Key) != 1 || l.Key[0] != headerRecord || len(l.Value) != 17 || l.Value[0] != outlineVersion {
			return 0, nil, false
		}
		if binary.BigEndian.Uint64(l.Value[1:]) != uint64(height) {
			return 0, nil, false
		}
		leaves, ok = binary.BigEndian.Uint64(l.Value[9:]), true
		break
	}
	return leaves, func(yield func(avlstar.PageStub, error) bool) {
		header := true
		for l, err := range zone.Outline() {
			if header && err == nil {
				header = false
				continue
			}
			var p avlstar.PageStub
			if err == nil {
				p, err = decodePage(l)
			}
			if !yield(p, err) || err != nil {
				return
			}
		}
	}, ok
}

var errOutlineForm = errors.New("malformed record of an outline")

func decodePage(l record.Leaf) (avlstar.PageStub, error) {
	var p avlstar.PageStub
	if len(l.Key) == 0 || l.Key[0] != pageRecord || len(l.Value) < 3 {
		return p, fmt.Errorf("%w: key %x", errOutlineForm, l.Key)
	}
	if len(l.Key) > 1 {
		p.First = l.Key[1:]
	}
	p.Boundary, p.Height = l.Value[0], l.Value[1]
	size, n := binary.Uvarint(l.Value[2:])
	if n <= 0 || len(l.Value) != 2+n+len(p.Hash) {
		return p, fmt.Errorf("%w: key %x", errOutlineForm, l.Key)
	}
	p.Bytes = size
	copy(p.Hash[:], l.Value[2+n:])
	return p, nil
}
