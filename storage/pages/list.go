package pages

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/avlstar/record"
)

// The page list of a state (avlstar.PageStub) is on disk next to its leaves, and changes with each
// flush. So a start reads the stubs of all pages instead of all leaves.
//
//	00                  → version:u8 ‖ height:u64be ‖ number of leaves:u64be
//	01                  → the page with the least key of the tree
//	01 ‖ first key      → another page
//
// where a page is boundary:u8 ‖ height:u8 ‖ uvarint(bytes) ‖ hash:32. A page list is not trusted:
// its tree has the app hash of the state, or is not used. A program that does not write it, or
// writes another version, leaves the height of an older state behind.
const (
	pageListVersion = 1
	headerRecord    = 0
	pageRecord      = 1

	pageRecordBytes = 40 // approximate length of a page's record without its first key
)

// AddPageList calls add for the records of the page list that changed, with an empty record for a
// page that is gone. height is that of the state, leaves its number of leaves, and changes are
// those of its page list.
func AddPageList(add func(key, record []byte), height int64, leaves uint64, changes iter.Seq[avlstar.PageStub]) {
	header := binary.BigEndian.AppendUint64([]byte{pageListVersion}, uint64(height))
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

// PageListReader yields records of the page list, like storage.Zone.
type PageListReader interface {
	PageList() iter.Seq2[record.Leaf, error]
}

// errNoPageList: the state has no page list.
var errNoPageList = errors.New("no page list")

// ReadPageList returns the page list of the state at height, and the number of leaves, which
// nothing proves. An error is yielded last.
func ReadPageList(zone PageListReader, height int64) (leaves uint64, pages iter.Seq2[avlstar.PageStub, error], err error) {
	if leaves, err = readHeader(zone, height); err != nil {
		return 0, nil, err
	}
	return leaves, func(yield func(avlstar.PageStub, error) bool) {
		header := true
		for l, err := range zone.PageList() {
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
	}, nil
}

func readHeader(zone PageListReader, height int64) (leaves uint64, err error) {
	for l, err := range zone.PageList() {
		switch {
		case err != nil:
			return 0, err
		case len(l.Key) != 1 || l.Key[0] != headerRecord || len(l.Value) != 17:
			return 0, fmt.Errorf("%w: it has no header", errPageListForm)
		case l.Value[0] != pageListVersion:
			return 0, fmt.Errorf("%w of version %d", errNoPageList, pageListVersion)
		case binary.BigEndian.Uint64(l.Value[1:]) != uint64(height):
			return 0, fmt.Errorf("%w of height %d: the last one is of height %d", errNoPageList, height, binary.BigEndian.Uint64(l.Value[1:]))
		}
		return binary.BigEndian.Uint64(l.Value[9:]), nil
	}
	return 0, errNoPageList
}

var errPageListForm = errors.New("malformed record of a page list")

func decodePage(l record.Leaf) (avlstar.PageStub, error) {
	var p avlstar.PageStub
	if len(l.Key) == 0 || l.Key[0] != pageRecord || len(l.Value) < 3 {
		return p, fmt.Errorf("%w: key %x", errPageListForm, l.Key)
	}
	if len(l.Key) > 1 {
		p.First = l.Key[1:]
	}
	p.Boundary, p.Height = l.Value[0], l.Value[1]
	size, n := binary.Uvarint(l.Value[2:])
	if n <= 0 || len(l.Value) != 2+n+len(p.Hash) {
		return p, fmt.Errorf("%w: key %x", errPageListForm, l.Key)
	}
	p.Bytes = size
	copy(p.Hash[:], l.Value[2+n:])
	return p, nil
}
