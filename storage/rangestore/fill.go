package rangestore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/pages"
)

// PieceBytes is the greatest size of a piece that is larger than one leaf.
const PieceBytes = 1 << 20

// Fill is a state that arrives in pieces, in any order, while nothing of it stays in memory. Pieces
// survive a kill of the process, and serve another height if their subtrees are the same there.
//
//	Fill ──► what an earlier Fill has left, verified
//	Keep(parts of a height) ──► the pieces that this height has, too; all others become spare
//	Add, Add, … ──► each removes the spare pieces that have some of its keys
//	Commit ──► spare pieces removed, the rest verified as a whole, durable
//	CommitUnread ──► the same without the verification, which Load makes up for
//
// So the choice of a height removes nothing: if no leaves arrive at that height, all pieces are
// there for the next one.
//
// A piece is a run of the zone's restore. The methods other than Add are called by one goroutine.
type Fill struct {
	s       *Store
	restore *storage.Restore
	mu      struct {
		sync.Mutex
		pieces map[storage.RunID]kept // of the height of the last Keep; before it, all pieces
		spare  []kept                 // all others; in key order
		bytes  uint64                 // of both
	}
}

// kept is a piece on disk. No two have a key in common.
type kept struct {
	Piece
	last []byte // greatest key
	gone bool   // only of spare pieces: it is removed
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
func pieceOf(id storage.RunID, records []byte) (p kept, ok bool) {
	if len(id) != pieceIDBytes {
		return p, false
	}
	b := []byte(id)
	n := copy(p.Root.Hash[:], b)
	p.Root.Height, p.Root.Bytes, p.Boundary = b[n], binary.BigEndian.Uint64(b[n+1:]), b[len(b)-1]
	if _, err := avlstar.VerifyPage(p.Root, records); err != nil {
		return p, false
	}
	first, last, err := ends(records)
	p.First, p.last = bytes.Clone(first), bytes.Clone(last)
	return p, err == nil
}

// ends returns the keys of the first and the last record.
func ends(records []byte) (first, last []byte, err error) {
	for more := true; more; more = len(records) > 0 {
		var l record.Leaf
		if l, records, err = record.Decode(records); err != nil {
			return nil, nil, err
		}
		if first == nil {
			first = l.Key
		}
		last = l.Key
	}
	return first, last, nil
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
	f.mu.pieces = map[storage.RunID]kept{}
	_, interrupted := s.zone.Interrupted() // Open has checked the label
	var err error
	if !interrupted {
		f.restore, err = s.zone.BeginRestore(s.fillLabel())
		return f, err
	}
	if f.restore, err = s.zone.ResumeRestore(); err != nil {
		return nil, err
	}
	if err := f.resume(ctx); err != nil {
		f.restore.Close()
		return nil, err
	}
	return f, nil
}

// resume reads and verifies the pieces that an earlier Fill has left.
func (f *Fill) resume(ctx context.Context) error {
	for _, id := range f.restore.Runs() {
		if err := ctx.Err(); err != nil {
			return err
		}
		records, err := f.restore.Read(id)
		if err != nil && !errors.Is(err, storage.ErrCorrupt) {
			return err
		}
		if p, ok := pieceOf(id, records); err == nil && ok {
			f.mu.pieces[id] = p
			f.mu.bytes += p.Root.Bytes
			continue
		}
		f.s.log.Info("A fetched piece of the range is damaged: fetching it again", "folder", f.s.dir)
		if err := f.restore.Remove(id); err != nil {
			return err
		}
	}
	// A kill between two concurrent calls of Add can leave a spare piece with keys of another one.
	var last []byte
	for _, p := range inOrder(f.mu.pieces) {
		if last == nil || bytes.Compare(p.First, last) > 0 {
			last = p.last
			continue
		}
		delete(f.mu.pieces, p.id())
		if err := f.remove(p); err != nil {
			return err
		}
	}
	return nil
}

// inOrder returns pieces in key order.
func inOrder(pieces map[storage.RunID]kept) []kept {
	return slices.SortedFunc(maps.Values(pieces), func(a, b kept) int { return bytes.Compare(a.First, b.First) })
}

// Bytes returns the size of all pieces.
func (f *Fill) Bytes() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.bytes
}

// Add writes a piece: its leaves as the records of a chunk, which the caller has verified. No piece
// of this height may have its keys; spare ones that do are removed. When it returns, the piece
// survives a kill of the process. It may be called concurrently.
func (f *Fill) Add(p Piece, records []byte) error {
	_, last, err := ends(records)
	if err != nil {
		return err
	}
	if err := f.remove(f.takeSpare(p.First, last)...); err != nil {
		return err
	}
	if err := f.restore.Add(p.id(), p.Boundary, records); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	p.First = bytes.Clone(p.First)
	f.mu.pieces[p.id()] = kept{Piece: p, last: bytes.Clone(last)}
	f.mu.bytes += p.Root.Bytes
	return nil
}

// takeSpare returns the spare pieces with keys in [first, last]. The caller removes them.
func (f *Fill) takeSpare(first, last []byte) (taken []kept) {
	f.mu.Lock()
	defer f.mu.Unlock()
	from, _ := slices.BinarySearchFunc(f.mu.spare, first, func(p kept, key []byte) int { return bytes.Compare(p.last, key) })
	for i := from; i < len(f.mu.spare) && bytes.Compare(f.mu.spare[i].First, last) <= 0; i++ {
		if p := &f.mu.spare[i]; !p.gone {
			p.gone = true
			taken = append(taken, *p)
		}
	}
	return taken
}

// Keep begins a height: its pieces are those that make up parts of its state, and all others are
// spare. The parts are disjoint and in key order. It reports for each part whether all its pieces
// are there. Errors: storage.ErrCorrupt, after which a new Fill removes damaged pieces; disk
// errors.
func (f *Fill) Keep(parts []avlstar.Part) (have []bool, err error) {
	all := slices.DeleteFunc(f.mu.spare, func(p kept) bool { return p.gone })
	all = slices.AppendSeq(all, maps.Values(f.mu.pieces))
	slices.SortFunc(all, func(a, b kept) int { return bytes.Compare(a.First, b.First) })
	f.mu.pieces, f.mu.spare = map[storage.RunID]kept{}, nil
	have = make([]bool, len(parts))
	for i, part := range parts {
		before, rest := split(all, part.First)
		within := rest
		if all = nil; part.After != nil {
			within, all = split(rest, part.After)
		}
		found, others := makeUp(part.Stub, within)
		if have[i] = len(found) > 0; have[i] {
			if found[0], err = f.move(found[0], part.Boundary); err != nil {
				return nil, err
			}
		}
		for _, p := range found {
			f.mu.pieces[p.id()] = p
		}
		f.mu.spare = append(append(f.mu.spare, before...), others...)
	}
	f.mu.spare = append(f.mu.spare, all...)
	return have, nil
}

// split divides pieces, in key order, into those that begin before a key and the others.
func split(pieces []kept, key []byte) (before, rest []kept) {
	n, _ := slices.BinarySearchFunc(pieces, key, func(p kept, key []byte) int { return bytes.Compare(p.First, key) })
	return pieces[:n], pieces[n:]
}

// makeUp returns the pieces, in key order, that are a subtree, and the others.
func makeUp(s avlstar.Stub, pieces []kept) (found, others []kept) {
	if i := slices.IndexFunc(pieces, func(p kept) bool { return p.Root == s }); i >= 0 {
		return pieces[i : i+1 : i+1], slices.Concat(pieces[:i], pieces[i+1:])
	}
	if len(pieces) < 2 {
		return nil, pieces
	}
	m := avlstar.Manifest{ChunkBytes: PieceBytes}
	for i, p := range pieces {
		e := avlstar.Entry{Root: p.Root}
		if i > 0 {
			e.BoundaryHeight, e.FirstKeyHash = p.Boundary, sha256.Sum256(p.First)
		}
		m.Entries = append(m.Entries, e)
	}
	if c, err := m.Commitment(); err != nil || c.Root != s {
		return nil, pieces
	}
	return pieces, nil
}

// move gives a piece another boundary height. The caller removes it from mu.
func (f *Fill) move(p kept, boundary uint8) (kept, error) {
	if p.Boundary == boundary {
		return p, nil
	}
	records, err := f.restore.Read(p.id())
	if err != nil {
		return p, err
	}
	if err := f.restore.Remove(p.id()); err != nil {
		return p, err
	}
	p.Boundary = boundary
	return p, f.restore.Add(p.id(), p.Boundary, records)
}

// remove removes pieces, which are no longer in mu.
func (f *Fill) remove(pieces ...kept) error {
	for _, p := range pieces {
		if err := f.restore.Remove(p.id()); err != nil {
			return err
		}
		f.mu.Lock()
		f.mu.bytes -= p.Root.Bytes
		f.mu.Unlock()
	}
	return nil
}

// Commit removes the spare pieces, and makes the others the durable state of a height. c and
// boundary are as for Create. Errors: that of ctx; avlstar.ErrOtherState and storage.ErrCorrupt if
// the pieces are not that state; disk errors. Afterwards the Fill must not be used; after the error
// of ctx, a Fill of the store that is opened again continues.
func (f *Fill) Commit(ctx context.Context, height int64, c avlstar.Commitment, boundary []byte) error {
	if err := f.removeSpare(ctx); err != nil {
		return err
	}
	if err := f.restore.Readable(); err != nil {
		return err
	}
	leaves := pages.Interruptible(ctx, f.s.zone.Scan(), func(uint64) {})
	if err := f.s.verify(c, boundary, leaves); err != nil {
		return err
	}
	return f.restore.Commit(f.s.meta(height, c, boundary))
}

// CommitUnread is Commit for a caller that gives up no other state for this one: it does not read
// the pieces, each of which was verified before Add. Load reads and verifies all of them, and
// returns storage.ErrCorrupt if they are not the state that c commits to.
func (f *Fill) CommitUnread(ctx context.Context, height int64, c avlstar.Commitment, boundary []byte) error {
	if err := f.removeSpare(ctx); err != nil {
		return err
	}
	return f.restore.Commit(f.s.meta(height, c, boundary))
}

// removeSpare removes the spare pieces.
func (f *Fill) removeSpare(ctx context.Context) error {
	for _, p := range f.mu.spare {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !p.gone {
			if err := f.remove(p); err != nil {
				return err
			}
		}
	}
	f.mu.spare = nil
	return nil
}
