package statesync

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/avlstar"
)

// pin is a snapshot that can be served. It may be dropped at any time, so a caller that serves from
// it takes a reference before it releases the lock: see pinned.
type pin struct {
	height int64
	source
	asked time.Time // when it was last offered or requested; guarded by serving
	left  time.Time // when it was first not among the newest; guarded by serving
	// noBlocks: CometBFT no longer has the blocks that follow it, so keeping later blocks would not
	// help.
	noBlocks bool
	part     *Part // available chunks; nil: all
}

// source is what a snapshot is served from: a version in memory, or a description in memory plus
// leaves on disk. It is reference-counted like a version.
type source interface {
	numChunks() uint32
	appHash() avlstar.Hash
	commitment() avlstar.Commitment
	manifest() []byte // encoded; must not be modified
	// The following methods require k < numChunks.
	chunkBytes(k uint32) uint64
	chunk(k uint32) ([]byte, error)
	// chunkRange returns [from, to) of chunk k, which must be within chunkBytes.
	chunkRange(k uint32, from, to uint64) ([]byte, error)
	rangeCost(k uint32, from, to uint64) uint64       // bytes processed for a range of chunk k
	cut(k uint32, limit uint64) (*avlstar.Cut, error) // cuts chunk k
	// kept returns the bytes of memory that the snapshot keeps: of the tree, and of its manifest,
	// whether or not that has been made yet.
	kept() (tree, manifest uint64)
	retain()
	release()
}

// Bounds of the memory of a chunk's entry in a manifest: encoded (docs/spec/chunks.md#manifest),
// and decoded, with the slice that has its first key.
const (
	encodedEntry = 70
	decodedEntry = 128
)

// release releases one reference to each pin.
func release(pins []*pin) {
	for _, p := range pins {
		p.release()
	}
}

// inMemory serves from a version.
type inMemory struct {
	version *avlstar.Version
	encoded func() []byte // encodes on the first call, which needs a reference
}

// newInMemory retains v.
func newInMemory(v *avlstar.Version) *inMemory {
	v.Retain()
	return &inMemory{v, sync.OnceValue(func() []byte { return v.Manifest().Encode() })}
}

func (s *inMemory) numChunks() uint32              { return s.version.NumChunks() }
func (s *inMemory) appHash() avlstar.Hash          { return s.version.AppHash() }
func (s *inMemory) manifest() []byte               { return s.encoded() }
func (s *inMemory) chunk(k uint32) ([]byte, error) { return s.version.Chunk(k) }
func (s *inMemory) commitment() avlstar.Commitment { return s.version.Commitment() }
func (s *inMemory) chunkBytes(k uint32) uint64 {
	return s.version.Manifest().Entries[k].Root.Bytes
}
func (s *inMemory) chunkRange(k uint32, from, to uint64) ([]byte, error) {
	return s.version.ChunkRange(k, from, to)
}
func (s *inMemory) rangeCost(_ uint32, from, to uint64) uint64 { return to - from }
func (s *inMemory) cut(k uint32, limit uint64) (*avlstar.Cut, error) {
	return s.version.CutChunk(k, limit)
}
func (s *inMemory) kept() (tree, manifest uint64) {
	return s.version.HeldBytes(), uint64(s.version.NumChunks()) * (encodedEntry + decodedEntry)
}
func (s *inMemory) retain()  { s.version.Retain() }
func (s *inMemory) release() { s.version.Release() }

// Pin is the state at one height on disk. Range may be called concurrently. Close is called once,
// after all other calls.
type Pin interface {
	// Range returns the records of the leaves with keys in [first, after), where nil is open, as in
	// a chunk (docs/spec/chunks.md) except for the first height, which is arbitrary. bytes is their
	// expected length; if they are longer, Range may return only part of them. The caller owns the
	// result.
	Range(first, after []byte, bytes uint64) (records []byte, err error)
	Close() error
}

// ErrDamagedPin says that a snapshot on disk differs from what was stored.
var ErrDamagedPin = errors.New("the snapshot on disk is damaged")

// onDisk serves from a stored pin, which it opens on the first request. It does not trust the disk:
// it verifies a whole chunk before it sends a byte of it.
type onDisk struct {
	*pinDescription
	open func(height int64) (Pin, error)
	log  log.Logger

	mu struct {
		sync.Mutex
		refs int
		pin  Pin // nil: not opened yet
		// last is the chunk most recently cut or requested by range: the next request is probably
		// for the same chunk.
		last struct {
			k     uint32
			data  []byte
			chunk *avlstar.Chunk // nil: there is none
		}
	}
}

// newOnDisk returns an onDisk with one reference.
func newOnDisk(d *pinDescription, open func(int64) (Pin, error), logger log.Logger) *onDisk {
	s := &onDisk{pinDescription: d, open: open, log: logger}
	s.mu.refs = 1
	return s
}

func (s *onDisk) numChunks() uint32     { return uint32(len(s.decoded.Entries)) }
func (s *onDisk) appHash() avlstar.Hash { return s.hash }
func (s *onDisk) manifest() []byte      { return s.encoded }

func (s *onDisk) commitment() avlstar.Commitment { return s.committed }

// chunk reads and verifies chunk k.
func (s *onDisk) chunk(k uint32) ([]byte, error) {
	data, _, err := s.verified(k)
	return data, err
}

func (s *onDisk) chunkBytes(k uint32) uint64 { return s.decoded.Entries[k].Root.Bytes }

// rangeCost is the length of the chunk, plus that of the range if it is shorter.
func (s *onDisk) rangeCost(k uint32, from, to uint64) uint64 {
	n := s.chunkBytes(k)
	if to-from == n {
		return n
	}
	return n + to - from
}

// chunkRange returns a copy, so that the caller does not keep the whole chunk in memory.
func (s *onDisk) chunkRange(k uint32, from, to uint64) ([]byte, error) {
	data, _, err := s.remembered(k)
	if err != nil {
		return nil, err
	}
	return bytes.Clone(data[from:to]), nil
}

// remembered is like verified, but caches the chunk for range requests and cuts.
func (s *onDisk) remembered(k uint32) ([]byte, *avlstar.Chunk, error) {
	s.mu.Lock()
	last := s.mu.last
	s.mu.Unlock()
	if last.chunk != nil && last.k == k {
		return last.data, last.chunk, nil
	}
	data, chunk, err := s.verified(k)
	if err == nil {
		s.mu.Lock()
		s.mu.last.k, s.mu.last.data, s.mu.last.chunk = k, data, chunk
		s.mu.Unlock()
	}
	return data, chunk, err
}

func (s *onDisk) cut(k uint32, limit uint64) (*avlstar.Cut, error) {
	_, chunk, err := s.remembered(k)
	if err != nil {
		return nil, err
	}
	return chunk.Cut(limit)
}

func (s *onDisk) verified(k uint32) ([]byte, *avlstar.Chunk, error) {
	pin, err := s.opened()
	if err != nil {
		return nil, nil, err
	}
	first, after := s.keys(k)
	data, err := pin.Range(first, after, s.decoded.Entries[k].Root.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: chunk %d: %w", ErrDamagedPin, k, err)
	}
	if len(data) > 0 {
		data[0] = 0 // zero in every chunk; in the whole tree it is the boundary height
	}
	chunk, err := s.decoded.VerifyChunk(k, data)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrDamagedPin, err)
	}
	return data, chunk, nil
}

func (s *onDisk) opened() (Pin, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.pin == nil {
		pin, err := s.open(s.height)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrDamagedPin, err)
		}
		s.mu.pin = pin
	}
	return s.mu.pin, nil
}

// kept returns no memory of the tree: the leaves are on disk. The caller of AddPart accounts for
// the memory of a part.
func (s *onDisk) kept() (tree, manifest uint64) { return 0, s.bytes }

func (s *onDisk) retain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.refs++
}

func (s *onDisk) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.refs--; s.mu.refs > 0 || s.mu.pin == nil {
		return
	}
	if err := s.mu.pin.Close(); err != nil {
		s.log.Error("A snapshot on disk did not close", "height", s.height, "err", err)
	}
	s.mu.pin = nil
}
