package avlstar

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
)

// MinCutBytes is the least limit of a cut: with Paging, smaller subtrees may not be in memory.
const MinCutBytes = maxPageBytes

// Cut is a tree, or a chunk, divided again with a smaller limit than that of its chunks. If two
// versions differ in a few leaves of a chunk, most pieces of that chunk are equal, and equal pieces
// have the same Stub (docs/spec/chunks.md#sub-manifests).
//
// A cut of a version refers to that version without holding a reference; a cut of a chunk refers to
// the bytes of the chunk. Its methods may be called concurrently.
type Cut struct {
	manifest *Manifest
	roots    []chunkRoot
	version  *Version // exactly one of version and run is set
	run      *run
	byRoot   map[Stub]uint32
}

// Cut divides v into maximal subtrees of at most limit bytes (MinCutBytes to MaxChunkBytes), or
// single leaves. It computes no hash and reads no page.
func (v *Version) Cut(limit uint64) (*Cut, error) {
	v.inUse()
	defer runtime.KeepAlive(v)
	c, err := newCut(limit)
	if err != nil {
		return nil, err
	}
	c.version = v
	if v.top != emptyStub {
		if err := v.walkUpper(c.manifest, &c.roots, chunkRoot{sub: sub{v.top, v.root}}); err != nil {
			return nil, fmt.Errorf("avlstar: cut: %w", err)
		}
	}
	return c.index(), nil
}

// CutChunk divides chunk k of v in the same way.
func (v *Version) CutChunk(k uint32, limit uint64) (*Cut, error) {
	v.inUse()
	defer runtime.KeepAlive(v)
	if k >= v.NumChunks() {
		return nil, fmt.Errorf("avlstar: no chunk %d, the version has %d", k, v.NumChunks())
	}
	c, err := newCut(limit)
	if err != nil {
		return nil, err
	}
	if err := v.upperTree(); err != nil {
		return nil, fmt.Errorf("avlstar: cut of chunk %d: %w", k, err)
	}
	c.version = v
	if err := v.walkUpper(c.manifest, &c.roots, v.chunks[k]); err != nil {
		return nil, fmt.Errorf("avlstar: cut of chunk %d: %w", k, err)
	}
	return c.index(), nil
}

// Cut divides the chunk in the same way. It returns an error when the chunk is part of a tree.
func (c *Chunk) Cut(limit uint64) (*Cut, error) {
	cut, err := newCut(limit)
	if err != nil {
		return nil, err
	}
	if cut.run = c.run; cut.run == nil {
		return nil, errors.New("avlstar: cut of a chunk that is part of a tree already")
	}
	walkUpper(runNodes{c.run}, cut.manifest, &cut.roots, chunkRoot{sub: c.run.root}, 0, nil)
	return cut.index(), nil
}

func newCut(limit uint64) (*Cut, error) {
	if limit < MinCutBytes || limit > MaxChunkBytes {
		return nil, fmt.Errorf("avlstar: cut into pieces of %d bytes, it must be %d to %d", limit, MinCutBytes, MaxChunkBytes)
	}
	return &Cut{manifest: &Manifest{ChunkBytes: limit}}, nil
}

func (c *Cut) index() *Cut {
	c.byRoot = make(map[Stub]uint32, len(c.roots))
	for k := range c.roots {
		c.byRoot[c.roots[k].Stub] = uint32(k)
	}
	return c
}

// Manifest lists the pieces as if they were chunks, with the limit as B. It must not be modified.
func (c *Cut) Manifest() *Manifest { return c.manifest }

// Find returns the number of a piece with that root. Two pieces with equal roots have equal bytes,
// except for the height in the first record.
func (c *Cut) Find(root Stub) (k uint32, ok bool) {
	k, ok = c.byRoot[root]
	return k, ok
}

// Piece returns the leaf records of piece k, encoded as a chunk.
func (c *Cut) Piece(k uint32) ([]byte, error) {
	if int64(k) >= int64(len(c.roots)) {
		return nil, fmt.Errorf("avlstar: no piece %d, the cut has %d", k, len(c.roots))
	}
	if c.version != nil {
		c.version.inUse()
		defer runtime.KeepAlive(c.version)
		b, err := c.version.encode(c.roots[k])
		if err != nil {
			return nil, fmt.Errorf("avlstar: piece %d: %w", k, err)
		}
		return b, nil
	}
	var from uint64
	for i := range c.manifest.Entries[:k] {
		from += c.manifest.Entries[i].Root.Bytes
	}
	b := slices.Clone(c.run.data[from : from+c.roots[k].Bytes])
	b[0] = 0
	return b, nil
}

// VerifySubManifest decodes the manifest of a chunk that is cut with a smaller limit, and verifies
// it against the chunk's root, which must be trusted. After that, VerifyChunk can verify each piece
// alone, except for the key of the first piece, which nothing commits to.
func VerifySubManifest(b []byte, chunk Stub, limit uint64) (*Manifest, error) {
	if uint64(len(b)) >= chunk.Bytes {
		return nil, fmt.Errorf("%w: it is as long as the chunk", ErrInvalidManifest)
	}
	m, err := DecodeManifest(b)
	if err != nil {
		return nil, err
	}
	c, err := m.Commitment()
	switch {
	case err != nil:
		return nil, err
	case m.ChunkBytes != limit:
		return nil, fmt.Errorf("%w: pieces of at most %d bytes, not %d", ErrInvalidManifest, m.ChunkBytes, limit)
	case c.Root != chunk:
		return nil, fmt.Errorf("%w: it leads to the root %s, not to %s", ErrInvalidManifest, c.Root.Hash, chunk.Hash)
	}
	return m, nil
}
