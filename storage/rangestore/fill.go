package rangestore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"sync"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/storage"
)

// PieceBytes is the greatest size of a piece that is larger than one leaf.
const PieceBytes = 1 << 20

// Fill is a state that arrives in pieces, in any order, while nothing of it stays in memory. Pieces
// survive a kill of the process, and serve another height if their subtrees are the same there.
//
//	Fill ──► what an earlier Fill has left, verified
//	Keep(parts of a height) ──► the pieces that this height has, too; all others are removed
//	Add, Add, … ──► Commit: verified as a whole, durable
//
// A piece is a run of the zone's restore. The methods other than Add are called by one goroutine.
type Fill struct {
	s       *Store
	restore *storage.Restore
	mu      struct {
		sync.Mutex
		pieces map[storage.RunID]Piece
		bytes  uint64
	}
}

// Piece is a subtree that has only keys of the range.
type Piece struct {
	Root  avlstar.Stub
	First []byte // least key
	// Boundary is the height of the inner node whose key is First; 0 if First is the least key of
	// the tree.
	Boundary uint8
}

// pieceIDBytes is the length of the id of a piece: hash:32 ‖ height:u8 ‖ bytes:u64be ‖ boundary:u8.
const pieceIDBytes = 32 + 1 + 8 + 1

func (p Piece) id() storage.RunID {
	b := append(bytes.Clone(p.Root.Hash[:]), p.Root.Height)
	return storage.RunID(append(binary.BigEndian.AppendUint64(b, p.Root.Bytes), p.Boundary))
}

// pieceOf returns the piece with an id and records; false if these are not its leaves.
func pieceOf(id storage.RunID, records []byte) (p Piece, ok bool) {
	if len(id) != pieceIDBytes {
		return p, false
	}
	b := []byte(id)
	n := copy(p.Root.Hash[:], b)
	p.Root.Height, p.Root.Bytes, p.Boundary = b[n], binary.BigEndian.Uint64(b[n+1:]), b[len(b)-1]
	if _, err := avlstar.VerifyPage(p.Root, records); err != nil {
		return p, false
	}
	l, _, err := record.Decode(records)
	p.First = bytes.Clone(l.Key)
	return p, err == nil
}

// fillLabel is the label of a Fill's restore: version:u8 ‖ len:u16be ‖ First ‖ len:u16be ‖ After ‖
// chain ID.
func (s *Store) fillLabel() []byte {
	const version = 1
	b := []byte{version}
	for _, key := range [][]byte{s.keys.First, s.keys.After} {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(key))), key...)
	}
	return append(b, s.chainID...)
}

// Fill continues the interrupted Fill of the store, or begins one: the store then has no state. It
// reads and verifies all pieces, and removes those that are damaged. It ends with the next Create
// or Close of the store. Errors: that of ctx; disk errors.
func (s *Store) Fill(ctx context.Context) (*Fill, error) {
	f := &Fill{s: s}
	f.mu.pieces = map[storage.RunID]Piece{}
	_, interrupted := s.zone.Interrupted() // Open has checked the label
	var err error
	if !interrupted {
		f.restore, err = s.zone.BeginRestore(s.fillLabel())
		return f, err
	}
	if f.restore, err = s.zone.ResumeRestore(); err != nil {
		return nil, err
	}
	for _, id := range f.restore.Runs() {
		if err := ctx.Err(); err != nil {
			f.restore.Close()
			return nil, err
		}
		records, err := f.restore.Read(id)
		p, ok := pieceOf(id, records)
		switch {
		case err != nil && !errors.Is(err, storage.ErrCorrupt):
			f.restore.Close()
			return nil, err
		case err == nil && ok:
			f.mu.pieces[id] = p
			f.mu.bytes += p.Root.Bytes
			continue
		}
		s.log.Info("A fetched piece of the range is damaged: fetching it again", "folder", s.dir)
		if err := f.restore.Remove(id); err != nil {
			f.restore.Close()
			return nil, err
		}
	}
	return f, nil
}

// Bytes returns the size of all pieces.
func (f *Fill) Bytes() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.bytes
}

// Add writes a piece: its leaves as the records of a chunk, which the caller has verified. No other
// piece may have its keys. When it returns, the piece survives a kill of the process. It may be
// called concurrently.
func (f *Fill) Add(p Piece, records []byte) error {
	if err := f.restore.Add(p.id(), p.Boundary, records); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	p.First = bytes.Clone(p.First)
	f.mu.pieces[p.id()] = p
	f.mu.bytes += p.Root.Bytes
	return nil
}

// Keep keeps the pieces that make up parts of a state, and removes all others. The parts are
// disjoint and in key order. It reports for each part whether all its pieces are there.
func (f *Fill) Keep(parts []avlstar.Part) (have []bool, err error) {
	f.mu.Lock()
	pieces := make([]Piece, 0, len(f.mu.pieces))
	for _, p := range f.mu.pieces {
		pieces = append(pieces, p)
	}
	f.mu.Unlock()
	slices.SortFunc(pieces, func(a, b Piece) int { return bytes.Compare(a.First, b.First) })
	have = make([]bool, len(parts))
	for i, part := range parts {
		n := 0
		for n < len(pieces) && bytes.Compare(pieces[n].First, part.First) < 0 {
			n++
		}
		if err := f.remove(pieces[:n]...); err != nil {
			return nil, err
		}
		pieces = pieces[n:]
		n = 0
		for n < len(pieces) && (part.After == nil || bytes.Compare(pieces[n].First, part.After) < 0) {
			n++
		}
		if have[i] = makeUp(part.Stub, pieces[:n]); have[i] {
			err = f.move(pieces[0], part.Boundary)
		} else {
			err = f.remove(pieces[:n]...)
		}
		if err != nil {
			return nil, err
		}
		pieces = pieces[n:]
	}
	return have, f.remove(pieces...)
}

// makeUp reports whether pieces, in key order, are a subtree.
func makeUp(s avlstar.Stub, pieces []Piece) bool {
	if len(pieces) < 2 {
		return len(pieces) == 1 && pieces[0].Root == s
	}
	m := avlstar.Manifest{ChunkBytes: PieceBytes}
	for i, p := range pieces {
		e := avlstar.Entry{Root: p.Root}
		if i > 0 {
			e.BoundaryHeight, e.FirstKeyHash = p.Boundary, sha256.Sum256(p.First)
		}
		m.Entries = append(m.Entries, e)
	}
	c, err := m.Commitment()
	return err == nil && c.Root == s
}

// move gives a piece another boundary height.
func (f *Fill) move(p Piece, boundary uint8) error {
	if p.Boundary == boundary {
		return nil
	}
	records, err := f.restore.Read(p.id())
	if err != nil {
		return err
	}
	if err := f.remove(p); err != nil {
		return err
	}
	p.Boundary = boundary
	return f.Add(p, records)
}

func (f *Fill) remove(pieces ...Piece) error {
	for _, p := range pieces {
		if err := f.restore.Remove(p.id()); err != nil {
			return err
		}
		f.mu.Lock()
		delete(f.mu.pieces, p.id())
		f.mu.bytes -= p.Root.Bytes
		f.mu.Unlock()
	}
	return nil
}

// Commit makes the pieces the durable state of a height. c and boundary are as for Create. Errors:
// avlstar.ErrOtherState and storage.ErrCorrupt if the pieces are not that state; disk errors.
// Afterwards the Fill must not be used.
func (f *Fill) Commit(height int64, c avlstar.Commitment, boundary []byte) error {
	if err := f.restore.Readable(); err != nil {
		return err
	}
	if err := f.s.verify(c, boundary, f.s.zone.Scan()); err != nil {
		return err
	}
	return f.restore.Commit(f.s.meta(height, c, boundary))
}
