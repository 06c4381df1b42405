package avlstar

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
)

// ErrInvalidChunk is wrapped by the refusals of VerifyChunk and Assemble.
var ErrInvalidChunk = errors.New("invalid chunk")

// Chunk is a verified chunk. It is immutable.
type Chunk struct {
	root   *node
	leaves uint64
}

// Leaves yields the leaves of the chunk in key order, with heights as in its encoding: the first has 0.
func (c *Chunk) Leaves() iter.Seq[Leaf] { return leavesOf(c.root) }

// Len returns the number of leaves.
func (c *Chunk) Len() uint64 { return c.leaves }

// Root returns the chunk's commitment: its entry in the manifest, and its identity across versions.
func (c *Chunk) Root() Stub { return c.root.stub() }

// Chunk returns the encoding of chunk k: its leaf records in key order (design, section 3). Its length is the manifest's.
func (v *Version) Chunk(k uint32) ([]byte, error) {
	if k >= v.NumChunks() {
		return nil, fmt.Errorf("avlstar: no chunk %d, the version has %d", k, v.NumChunks())
	}
	v.upperTree()
	b := make([]byte, 0, v.chunks[k].bytes)
	for l := range leavesOf(v.chunks[k]) {
		b = appendRecord(b, l)
	}
	return b, nil
}

// VerifyChunk checks that data is chunk k of m, alone: its length, that it decodes completely into a proper AVL tree of strictly
// ascending keys, the hash of its first key (chunk 0: any), and its root. If m itself was verified, so is then every byte of data.
// The chunk refers to data, which must not be changed afterwards. Concurrent calls are fine.
func (m *Manifest) VerifyChunk(k uint32, data []byte) (*Chunk, error) {
	c, err := m.verifyChunk(k, data)
	if err != nil {
		return nil, fmt.Errorf("%w %d: %w", ErrInvalidChunk, k, err)
	}
	return c, nil
}

func (m *Manifest) verifyChunk(k uint32, data []byte) (*Chunk, error) {
	if uint64(k) >= uint64(len(m.Entries)) {
		return nil, fmt.Errorf("the manifest has %d", len(m.Entries))
	}
	want := &m.Entries[k]
	if uint64(len(data)) != want.Root.Bytes {
		return nil, fmt.Errorf("%d bytes, the manifest says %d", len(data), want.Root.Bytes)
	}
	b := builder{chunkBytes: m.ChunkBytes}
	for rest := data; len(rest) > 0; {
		var l Leaf
		var err error
		if l, rest, err = decodeRecord(rest); err == nil {
			err = want.checkRecord(k, b.leaves, l)
		}
		if err == nil {
			err = b.add(leafItem(l.Height, l.Key, l.Value))
		}
		if err != nil {
			return nil, fmt.Errorf("record %d: %w", b.leaves, err)
		}
	}
	root, err := b.root()
	switch {
	case err != nil:
		return nil, err
	case root == nil:
		return nil, errors.New("it is empty")
	case root.stub() != want.Root:
		return nil, fmt.Errorf("root %s of height %d and %d bytes, the manifest says %s of height %d and %d bytes",
			root.hash, root.height, root.bytes, want.Root.Hash, want.Root.Height, want.Root.Bytes)
	}
	return &Chunk{root: root, leaves: b.leaves}, nil
}

// checkRecord checks what only the manifest's entry tells about record i of chunk k. No record may be higher than the root: so a tree
// that grows while it is decoded stays within the 2^height leaves that the manifest proved.
func (e *Entry) checkRecord(k uint32, i uint64, l Leaf) error {
	switch {
	case l.Height > e.Root.Height:
		return fmt.Errorf("height %d in a chunk of height %d", l.Height, e.Root.Height)
	case i > 0:
		return nil
	case l.Height != 0:
		return fmt.Errorf("the first record has height %d, not 0", l.Height)
	case k > 0 && sha256.Sum256(l.Key) != e.FirstKeyHash:
		return errors.New("the first key is not the manifest's")
	}
	return nil
}

// Assemble joins all chunks of m to the version that m describes. It fails where a chunk is missing (nil) or is not that of m.
func Assemble(m *Manifest, chunks []*Chunk) (*Version, error) {
	if err := checkChunkBytes(m.ChunkBytes); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidManifest, err)
	}
	if len(chunks) != len(m.Entries) {
		return nil, fmt.Errorf("%w: %d chunks, the manifest has %d", ErrInvalidChunk, len(chunks), len(m.Entries))
	}
	b := builder{chunkBytes: m.ChunkBytes, upperOnly: true}
	var leaves uint64
	for k, c := range chunks {
		if c == nil {
			return nil, fmt.Errorf("%w %d: it is missing", ErrInvalidChunk, k)
		}
		e := &m.Entries[k]
		key := c.root.first().key
		it := item{boundary: e.BoundaryHeight, key: key, keyHash: sha256.Sum256(key), node: c.root}
		if c.Root() != e.Root || k > 0 && it.keyHash != e.FirstKeyHash {
			return nil, fmt.Errorf("%w %d: it was verified against another manifest", ErrInvalidChunk, k)
		}
		if err := b.add(it); err != nil {
			return nil, fmt.Errorf("%w: entry %d: %w", ErrInvalidManifest, k, err)
		}
		leaves += c.leaves
	}
	root, err := b.root()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidManifest, err)
	}
	return newVersion(root, m.ChunkBytes, 0, b.upper, leaves)
}
