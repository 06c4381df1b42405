package avlstar

import (
	"encoding/binary"
	"errors"
	"fmt"
)

const (
	// DefaultChunkBytes is the chunk limit B if the genesis file sets none.
	DefaultChunkBytes = 1 << 20
	// MaxChunkBytes is the largest chunk limit: a chunk and its envelope fit into CometBFT's chunk
	// message of 16,000,000 bytes.
	MaxChunkBytes = 15_000_000
)

// ErrInvalidCommitment is wrapped by the errors of DecodeCommitment.
var ErrInvalidCommitment = errors.New("invalid commitment")

// Commitment holds the values that the AppHash commits to. Its 53 bytes are the first thing that a
// node requests when it knows only an AppHash.
type Commitment struct {
	ChunkBytes uint64 // B
	Chunks     uint32 // m
	Root       Stub
}

// CommitmentBytes is the length of an encoded Commitment: u64be(B) ‖ u32be(m) ‖ stat(root) ‖ state
// root (docs/spec/tree.md#commitment).
const CommitmentBytes = 8 + 4 + statBytes + 32

// Keys of the simple Merkle map under the AppHash, in the map's order.
const (
	mapChunksKey = "chunks"
	mapStateKey  = "state"
)

// AppHash returns the root of the simple Merkle map { "chunks": u64be(B) ‖ u32be(m) ‖ stat(root),
// "state": state root } (docs/spec/tree.md#app-hash).
func (c Commitment) AppHash() Hash {
	return hashMapInner(hashMapLeaf(mapChunksKey, c.chunksValue()), hashMapLeaf(mapStateKey, c.Root.Hash[:]))
}

// chunksValue returns the value of the map's key "chunks".
func (c Commitment) chunksValue() []byte {
	b := make([]byte, 0, CommitmentBytes)
	b = binary.BigEndian.AppendUint64(b, c.ChunkBytes)
	b = binary.BigEndian.AppendUint32(b, c.Chunks)
	return c.Root.append(b)
}

// Encode returns the 53 bytes u64be(B) ‖ u32be(m) ‖ stat(root) ‖ state root.
func (c Commitment) Encode() []byte { return append(c.chunksValue(), c.Root.Hash[:]...) }

// DecodeCommitment is the inverse of Encode. It checks only the form: compare the result's AppHash
// with a trusted one.
func DecodeCommitment(b []byte) (Commitment, error) {
	if len(b) != CommitmentBytes {
		return Commitment{}, fmt.Errorf("%w: %d bytes, want %d", ErrInvalidCommitment, len(b), CommitmentBytes)
	}
	c := Commitment{
		ChunkBytes: binary.BigEndian.Uint64(b),
		Chunks:     binary.BigEndian.Uint32(b[8:]),
		Root:       Stub{Stat: Stat{Height: b[12], Bytes: binary.BigEndian.Uint64(b[13:])}, Hash: Hash(b[21:])},
	}
	if err := checkChunkBytes(c.ChunkBytes); err != nil {
		return Commitment{}, fmt.Errorf("%w: %w", ErrInvalidCommitment, err)
	}
	if (c.Chunks == 0) != (c.Root == emptyStub) {
		return Commitment{}, fmt.Errorf("%w: %d chunks, root %s of %d bytes: only the empty tree has none",
			ErrInvalidCommitment, c.Chunks, c.Root.Hash, c.Root.Bytes)
	}
	return c, nil
}

// emptyStub commits to the empty tree.
var emptyStub = Stub{Hash: emptyRoot}

func checkChunkBytes(chunkBytes uint64) error {
	if chunkBytes < 1 || chunkBytes > MaxChunkBytes {
		return fmt.Errorf("chunk limit of %d bytes, must be 1 to %d", chunkBytes, MaxChunkBytes)
	}
	return nil
}
