package avlstar

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"

	"github.com/starling-kv/starling/avlstar/record"
)

// ErrInvalidManifest is wrapped by the errors of DecodeManifest, VerifyManifest and Assemble about
// a manifest.
var ErrInvalidManifest = errors.New("invalid manifest")

// manifestVersion is the format version, with which a manifest begins.
const manifestVersion = 1

// minEntryBytes is the length of the shortest entry after the first.
const minEntryBytes = 1 + 32 + 1 + 1 + 32

// Manifest lists the chunks of a tree. With it, the upper tree can be rebuilt and each chunk can be
// checked alone.
type Manifest struct {
	ChunkBytes uint64 // B
	Entries    []Entry
}

// Entry describes one chunk.
type Entry struct {
	// Height of the upper inner node whose key is the chunk's first key; 0 in the first entry.
	BoundaryHeight uint8
	FirstKeyHash   Hash // SHA256 of the chunk's first key; zero in the first entry
	Root           Stub
}

// Manifest returns the manifest of v, which must not be modified. The first call makes it, in a
// walk over the upper tree. It panics if a node of the upper tree is missing, which is possible
// only in the tree of a Partial: see TryManifest.
func (v *Version) Manifest() *Manifest {
	if err := v.upperTree(); err != nil {
		panic(fmt.Sprintf("avlstar: the manifest of a partial tree: %v", err))
	}
	return v.man
}

// upperTree walks the upper tree once and keeps the roots of the chunks and the manifest, or the
// error if a node is missing.
func (v *Version) upperTree() error {
	v.inUse()
	defer runtime.KeepAlive(v)
	v.once.Do(func() {
		v.man = &Manifest{ChunkBytes: v.chunkBytes, Entries: make([]Entry, 0, v.NumChunks())}
		v.chunks = make([]chunkRoot, 0, v.NumChunks())
		if v.top != emptyStub {
			v.upperErr = v.walkUpper(v.man, &v.chunks, chunkRoot{sub: sub{v.top, v.root}})
		}
	})
	return v.upperErr
}

// walkUpper is the function walkUpper for a subtree of v, with a *MissingNodeError as its error.
func (v *Version) walkUpper(m *Manifest, roots *[]chunkRoot, s chunkRoot) error {
	if missing, ok := walkUpper(&v.view, m, roots, s, 0, nil); !ok {
		return v.missingStub(missing)
	}
	return nil
}

// chunkRoot is the root of a chunk. It is the child of node up on the given side.
type chunkRoot struct {
	sub
	up   ref
	side int
}

// walkUpper appends the chunks of s to m and roots. h is the height of the inner node whose key is
// the least key of s. keyHash points to the hash of that key; it is nil if there is no such node,
// because the key is the least of all. ok is false if a subtree that is larger than a chunk is only
// a stub, which is then returned as missing.
func walkUpper(w nodes, m *Manifest, roots *[]chunkRoot, s chunkRoot, h uint8, keyHash *Hash) (missing Stub, ok bool) {
	if !isSmall(s.Stat, m.ChunkBytes) {
		if s.n == 0 {
			return s.Stub, false
		}
		if missing, ok = walkUpper(w, m, roots, chunkRoot{childOf(w, s.n, left), s.n, left}, h, keyHash); !ok {
			return missing, false
		}
		return walkUpper(w, m, roots, chunkRoot{childOf(w, s.n, right), s.n, right}, s.Height, w.image(s.n).keyHash())
	}
	e := Entry{BoundaryHeight: h, Root: s.Stub}
	if keyHash != nil {
		e.FirstKeyHash = *keyHash
	}
	*roots = append(*roots, s)
	m.Entries = append(m.Entries, e)
	return Stub{}, true
}

// Encode returns the unique encoding of the manifest (docs/spec/chunks.md#manifest):
//
//	manifest     = uvarint(version = 1) ‖ uvarint(B) ‖ uvarint(m) ‖ entry × m
//	entry 0      = root height:u8 ‖ uvarint(bytes) ‖ root hash:32
//	entry k > 0  = boundary height:u8 ‖ SHA256(first key of chunk k):32 ‖ root height:u8 ‖ uvarint(bytes) ‖ root hash:32
func (m *Manifest) Encode() []byte {
	b := make([]byte, 0, 16+70*len(m.Entries))
	b = binary.AppendUvarint(b, manifestVersion)
	b = binary.AppendUvarint(b, m.ChunkBytes)
	b = binary.AppendUvarint(b, uint64(len(m.Entries)))
	for k := range m.Entries {
		e := &m.Entries[k]
		if k > 0 {
			b = append(append(b, e.BoundaryHeight), e.FirstKeyHash[:]...)
		}
		b = append(b, e.Root.Height)
		b = binary.AppendUvarint(b, e.Root.Bytes)
		b = append(b, e.Root.Hash[:]...)
	}
	return b
}

// DecodeManifest is the inverse of Encode. It checks only the form; see VerifyManifest. Its
// allocations are proportional to len(b).
func DecodeManifest(b []byte) (*Manifest, error) {
	m, err := decodeManifest(b)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidManifest, err)
	}
	return m, nil
}

func decodeManifest(b []byte) (*Manifest, error) {
	var header [3]uint64 // version, B, m
	var err error
	for i := range header {
		if header[i], b, err = record.Uvarint(b); err != nil {
			return nil, fmt.Errorf("header: %w", err)
		}
	}
	version, chunkBytes, count := header[0], header[1], header[2]
	if version != manifestVersion {
		return nil, fmt.Errorf("version %d, only %d is known", version, manifestVersion)
	}
	if err := checkChunkBytes(chunkBytes); err != nil {
		return nil, err
	}
	if count > math.MaxUint32 {
		return nil, fmt.Errorf("%d chunks, at most 2^32-1 are allowed", count)
	}
	m := &Manifest{ChunkBytes: chunkBytes, Entries: make([]Entry, 0, min(count, uint64(len(b)/minEntryBytes+1)))}
	for k := range count {
		var e Entry
		if b, err = e.decode(b, k == 0, chunkBytes); err != nil {
			return nil, fmt.Errorf("entry %d: %w", k, err)
		}
		m.Entries = append(m.Entries, e)
	}
	if len(b) > 0 {
		return nil, fmt.Errorf("%d bytes after the last entry", len(b))
	}
	return m, nil
}

// decode decodes the entry at the beginning of b and returns the bytes after it.
func (e *Entry) decode(b []byte, first bool, chunkBytes uint64) (rest []byte, err error) {
	if !first {
		if len(b) < 1+len(e.FirstKeyHash) {
			return nil, record.ErrShort
		}
		e.BoundaryHeight = b[0]
		b = b[1+copy(e.FirstKeyHash[:], b[1:]):]
	}
	if len(b) < 1 {
		return nil, record.ErrShort
	}
	e.Root.Height = b[0]
	if e.Root.Bytes, b, err = record.Uvarint(b[1:]); err != nil {
		return nil, err
	}
	if len(b) < len(e.Root.Hash) {
		return nil, record.ErrShort
	}
	b = b[copy(e.Root.Hash[:], b):]
	switch {
	case e.Root.Height == 0 && (e.Root.Bytes < record.MinBytes || e.Root.Bytes > record.MaxBytes):
		return nil, fmt.Errorf("leaf record of %d bytes, must be %d to %d", e.Root.Bytes, record.MinBytes, record.MaxBytes)
	case e.Root.Height > 0 && e.Root.Bytes > chunkBytes:
		return nil, fmt.Errorf("chunk of %d bytes, more than the limit of %d, and not a leaf", e.Root.Bytes, chunkBytes)
	}
	return b, nil
}

// VerifyManifest decodes a manifest and verifies it against a trusted AppHash: it rebuilds the
// upper tree, checks every invariant of the AVL tree and of the chunks, and compares the result
// with the AppHash. After that, the height, length and root hash of every chunk can be trusted.
func VerifyManifest(b []byte, appHash Hash) (*Manifest, error) {
	m, err := DecodeManifest(b)
	if err != nil {
		return nil, err
	}
	c, err := m.Commitment()
	if err != nil {
		return nil, err
	}
	if got := c.AppHash(); got != appHash {
		return nil, fmt.Errorf("%w: it leads to the app hash %s, not to %s", ErrInvalidManifest, got, appHash)
	}
	return m, nil
}

// Commitment rebuilds the upper tree and returns the commitment of the tree that m describes. It
// fails if that is not a proper tree of maximal chunks.
func (m *Manifest) Commitment() (Commitment, error) {
	c := Commitment{ChunkBytes: m.ChunkBytes, Chunks: uint32(len(m.Entries)), Root: emptyStub}
	if len(m.Entries) == 0 {
		return c, nil
	}
	b := builder{chunkBytes: m.ChunkBytes, upperOnly: true, join: func(k uint32, _ Stat, l, r *sub) (ref, Hash) {
		return 0, hashInner(l.Stub, r.Stub, m.Entries[k].FirstKeyHash)
	}}
	for k := range m.Entries {
		e := &m.Entries[k]
		if err := b.add(e.BoundaryHeight, &sub{Stub: e.Root}); err != nil {
			return Commitment{}, fmt.Errorf("%w: entry %d: %w", ErrInvalidManifest, k, err)
		}
	}
	root, err := b.root()
	if err != nil {
		return Commitment{}, fmt.Errorf("%w: %w", ErrInvalidManifest, err)
	}
	c.Root = root.Stub
	return c, nil
}
