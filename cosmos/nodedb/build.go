package nodedb

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/internal/crc32c"
)

// Finish makes the database. All chunks must be installed. After an error or a crash, call Finish
// again with another Tables.
//
//	chunks in key order ─▶ fast index                                        runs in this order
//	                    └▶ nodes, by version in each chunk ─▶ pieces
//	pieces ─▶ parts of the key range, one after another ─▶ sorted by version and nonce ─▶ runs
//
// Nonces ascend with places, and therefore with chunks, so pieces of chunks are sorted instead of
// nodes. A part has the nodes in a range of keys. If there are several, their pieces are in files:
// to verify all chunks once for each part would take longer.
func (s *Spool) Finish(t Tables) (err error) {
	if n := len(s.Missing()); n > 0 {
		return fmt.Errorf("finish: %d chunks are missing", n)
	}
	b := building{Spool: s, t: t, placed: make([]*Placed, s.m.Chunks()), begun: map[int]bool{}, borders: s.borders()}
	defer func() {
		for _, p := range b.parts {
			err = errors.Join(err, p.remove())
		}
	}()
	if err = b.divide(); err == nil {
		for _, p := range b.parts {
			if err = b.write(p); err != nil {
				break
			}
			b.advance(0.5 / float64(len(b.parts)))
		}
	}
	if err == nil {
		err = t.Commit(s.last())
	}
	if err != nil {
		return fmt.Errorf("finish: %w", err)
	}
	return nil
}

func (a nodeAt) compare(b nodeAt) int {
	return cmp.Or(cmp.Compare(a.store, b.store), cmp.Compare(a.version, b.version), cmp.Compare(a.nonce, b.nonce))
}

// maxParts limits the open files and their buffers. The parts of states of more than 64 GiB are
// larger than MemoryBytes by default.
const maxParts = 256

// borders returns the first nodes of all parts except the first part.
func (s *Spool) borders() (borders []nodeAt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	memory := s.MemoryBytes
	if memory <= 0 {
		memory = DefaultSpoolMemory
	}
	slices.SortFunc(s.some, nodeAt.compare)
	parts := int(min(s.bytes/memory+1, maxParts))
	for i := 1; i < parts && len(s.some) > 0; i++ {
		border := s.some[i*len(s.some)/parts]
		if n := len(borders); n == 0 || borders[n-1].compare(border) < 0 {
			borders = append(borders, border)
		}
	}
	return borders
}

// partOf returns the number of the part that has a node.
func partOf(borders []nodeAt, at nodeAt) int {
	i, first := slices.BinarySearchFunc(borders, at, nodeAt.compare)
	if first {
		i++
	}
	return i
}

// building is the state of one Finish.
type building struct {
	*Spool
	t       Tables
	borders []nodeAt
	parts   []*part
	placed  []*Placed    // by chunk; complete after divide
	begun   map[int]bool // stores whose first piece was written

	mu    sync.Mutex
	share float64 // share of Finish that is done; guarded by mu
}

// advance reports progress.
func (b *building) advance(share float64) {
	if b.Progress == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.share += share
	b.Progress(b.share)
}

// piece is a run of nodes of one version with ascending nonces, in one part. No other node sorts
// between them.
type piece struct {
	at nodeAt
	b  []byte // (nonce:4 ‖ len record:4 ‖ record) × n
}

// part has pieces in a range of keys.
type part struct {
	mu     sync.Mutex
	pieces []piece // if there is no file; guarded by mu
	// file has (uvarint(store) ‖ uvarint(version) ‖ uvarint(len b) ‖ b) × filed; nil: none
	file  *os.File
	w     *bufio.Writer // guarded by mu
	filed int           // pieces in the file; guarded by mu
	sum   uint32        // CRC-32C of the file; guarded by mu
}

func (p *part) add(pieces []piece) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.file == nil {
		p.pieces = append(p.pieces, pieces...)
		return nil
	}
	p.filed += len(pieces)
	var head []byte
	for i := range pieces {
		head = binary.AppendUvarint(head[:0], uint64(pieces[i].at.store))
		head = binary.AppendUvarint(head, uint64(pieces[i].at.version))
		head = binary.AppendUvarint(head, uint64(len(pieces[i].b)))
		for _, b := range [][]byte{head, pieces[i].b} {
			p.sum = crc32c.Update(p.sum, b)
			if _, err := p.w.Write(b); err != nil {
				return err
			}
		}
	}
	return nil
}

// take returns the sorted pieces, which p does not keep.
func (p *part) take() (pieces []piece, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pieces, p.pieces = p.pieces, nil
	if p.file != nil {
		if err := p.w.Flush(); err != nil {
			return nil, err
		}
		b, err := os.ReadFile(p.file.Name())
		if err != nil {
			return nil, err
		}
		if crc32c.Sum(b) != p.sum {
			return nil, fmt.Errorf("file %s: %w: its checksum is wrong", p.file.Name(), ErrInvalidRecord)
		}
		pieces = make([]piece, 0, p.filed)
		for d := (decoder{b: b}); len(d.b) > 0; {
			at := nodeAt{store: int(d.uvarint()), version: int64(d.uvarint())}
			records := d.bytes()
			if d.err != nil || len(records) < 4 {
				return nil, fmt.Errorf("file %s: %w", p.file.Name(), ErrInvalidRecord)
			}
			at.nonce = binary.BigEndian.Uint32(records)
			pieces = append(pieces, piece{at, records})
		}
	}
	slices.SortFunc(pieces, func(a, b piece) int { return a.at.compare(b.at) })
	return pieces, p.remove()
}

// remove removes the file, if there is one.
func (p *part) remove() error {
	if p.file == nil {
		return nil
	}
	err := errors.Join(p.file.Close(), os.Remove(p.file.Name()))
	p.file, p.w = nil, nil
	return err
}

// partBuffer is the length of a part's buffer before its file.
const partBuffer = 256 << 10

// divide writes the fast index, and divides all nodes into parts.
func (b *building) divide() error {
	for range len(b.borders) + 1 {
		p := &part{}
		if len(b.borders) > 0 {
			f, err := os.CreateTemp(b.dir, temporary)
			if err != nil {
				return err
			}
			p.file, p.w = f, bufio.NewWriterSize(f, partBuffer)
		}
		b.parts = append(b.parts, p)
	}
	groups := b.groups()
	if err := parallel(len(groups), func(g int) error { return b.group(groups[g]) }); err != nil {
		return err
	}
	return b.above()
}

// keep adds pieces to their parts.
func (b *building) keep(pieces []piece) error {
	for from, to := 0, 1; from < len(pieces); from, to = to, to+1 {
		i := partOf(b.borders, pieces[from].at)
		for to < len(pieces) && partOf(b.borders, pieces[to].at) == i {
			to++
		}
		if err := b.parts[i].add(pieces[from:to]); err != nil {
			return err
		}
	}
	return nil
}

// write writes the nodes of a part.
func (b *building) write(p *part) error {
	pieces, err := p.take()
	if err != nil {
		return err
	}
	heads := map[int]bool{} // indexes of the pieces that are the first of their stores
	for i := range pieces {
		if store := pieces[i].at.store; !b.begun[store] {
			b.begun[store], heads[i] = true, true
		}
	}
	spans := spansOf(pieces)
	return parallel(len(spans), func(i int) error {
		from, to := spans[i][0], spans[i][1]
		return b.nodes(pieces[from:to], heads[from])
	})
}

// groups returns ranges of chunks, each within one store, several for each processor.
func (b *building) groups() (groups [][2]int) {
	most := max(1, b.m.Chunks()/(4*runtime.GOMAXPROCS(0)))
	for i := range b.m.Stores {
		start, n := b.start[i], len(b.m.Stores[i].Entries)
		for k := 0; k < n; k += most {
			groups = append(groups, [2]int{start + k, start + min(n, k+most)})
		}
	}
	return groups
}

func (b *building) group(g [2]int) error {
	run, err := b.t.Run()
	if err != nil {
		return err
	}
	for k := g[0]; k < g[1]; k++ {
		w := pieceWriter{borders: b.borders}
		p, err := b.chunk(k, func(i int, at int64, c *iavlsync.Chunk) (*Placed, error) {
			if err := b.fastIndex(run, i, c); err != nil {
				return nil, err
			}
			w.end()
			w.grow(c)
			p, err := b.subtree(&w, i, at, c)
			return p, errors.Join(err, w.keep(b))
		}, func(i int, image *iavlsync.Image, left, right *Placed) (*Placed, error) {
			n := iavlsync.Inner{Hash: image.Hash(), Size: image.Size, Version: image.Version, Height: image.Height}
			w.end()
			return b.inner(&w, i, &n, left, right)
		})
		if err == nil {
			err = w.keep(b)
		}
		if err != nil {
			return fmt.Errorf("chunk %d: %w", k, err)
		}
		b.placed[k] = p
		b.advance(0.5 / float64(len(b.placed)))
	}
	return run.Finish()
}

func (b *building) fastIndex(run Run, i int, c *iavlsync.Chunk) error {
	prefix := append(slices.Clone(b.stores[i].prefix), kindFast)
	var key, record []byte
	for j := range c.Leaves {
		leaf := &c.Leaves[j]
		key, record = append(append(key[:0], prefix...), leaf.Key...), AppendFast(record[:0], leaf.Version, leaf.Value)
		if err := run.Set(key, record); err != nil {
			return err
		}
	}
	return nil
}

// above adds the nodes above the chunks, and the records at the places of the roots.
func (b *building) above() error {
	w := pieceWriter{alone: true}
	for i := range b.m.Stores {
		version, err := b.upperTree(&w, i, b.placed)
		if err != nil {
			return err
		}
		if root := b.reference(i, version); root != nil {
			if err := w.record(i, b.m.Height, rootNonce, func(b []byte) []byte { return append(b, root...) }); err != nil {
				return err
			}
		}
	}
	return w.keep(b)
}

// pieceWriter makes pieces of nodes. Until end is called, nodes of one version arrive in ascending
// order, except a store's root, which becomes a piece of its own.
type pieceWriter struct {
	borders []nodeAt // pieces end before them
	alone   bool     // make each node a piece
	pieces  []piece
	open    bool // the last piece may grow
	b       []byte
	start   int
}

func (w *pieceWriter) end() {
	if w.open {
		w.pieces[len(w.pieces)-1].b = w.b[w.start:len(w.b):len(w.b)]
	}
	w.open = false
}

// keep ends the last piece, and gives all to their parts.
func (w *pieceWriter) keep(b *building) error {
	w.end()
	pieces := w.pieces
	w.pieces = nil
	return b.keep(pieces)
}

// grow allocates space for the nodes of a subtree.
func (w *pieceWriter) grow(c *iavlsync.Chunk) {
	const heads = 90 // approximate headers of a leaf and an inner node
	size := 0
	for i := range c.Leaves {
		size += 2*len(c.Leaves[i].Key) + len(c.Leaves[i].Value) + heads
	}
	w.b = make([]byte, 0, size)
}

func (w *pieceWriter) record(store int, version int64, nonce uint32, fn func(b []byte) []byte) error {
	at := nodeAt{store, version, nonce}
	if last := len(w.pieces) - 1; !w.open || w.alone || w.pieces[last].at.version != version || w.pieces[last].at.store != store ||
		nonce == rootNonce || w.pieces[last].at.nonce == rootNonce || partOf(w.borders, w.pieces[last].at) != partOf(w.borders, at) {
		w.end()
		w.pieces, w.open, w.start = append(w.pieces, piece{at: at}), true, len(w.b)
	}
	const room = 4 // space for the length, which is set afterwards
	w.b = binary.BigEndian.AppendUint32(w.b, nonce)
	at4 := len(w.b)
	w.b = fn(append(w.b, make([]byte, room)...))
	binary.BigEndian.PutUint32(w.b[at4:], uint32(len(w.b)-at4-room))
	return nil
}

// spansOf returns ranges of pieces, each within one store, several for each processor.
func spansOf(pieces []piece) (spans [][2]int) {
	total := 0
	for i := range pieces {
		total += len(pieces[i].b)
	}
	most := total/(4*runtime.GOMAXPROCS(0)) + 1
	for start, size, i := 0, 0, 0; i < len(pieces); i++ {
		size += len(pieces[i].b)
		if last := i+1 == len(pieces); last || size >= most || pieces[i+1].at.store != pieces[i].at.store {
			spans = append(spans, [2]int{start, i + 1})
			start, size = i+1, 0
		}
	}
	return spans
}

// nodes writes pieces of one store. If they are its first, the version of its fast index precedes
// them.
func (b *building) nodes(pieces []piece, first bool) error {
	run, err := b.t.Run()
	if err != nil {
		return err
	}
	s := &b.stores[pieces[0].at.store]
	if first {
		if err := run.Set(s.key(kindMetadata, []byte(storageVersionKey)), encodeStorageVersion(b.m.Height)); err != nil {
			return err
		}
	}
	key := s.key(kindNode, make([]byte, nodeKeyBytes))
	tail := key[len(key)-nodeKeyBytes:]
	for _, p := range pieces {
		binary.BigEndian.PutUint64(tail, uint64(p.at.version))
		for rest := p.b; len(rest) > 0; {
			copy(tail[8:], rest[:4])
			n := 8 + binary.BigEndian.Uint32(rest[4:])
			if err := run.Set(key, rest[8:n]); err != nil {
				return err
			}
			rest = rest[n:]
		}
	}
	return run.Finish()
}
