package iavlsync

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/starling-kv/starling/internal/wire"
)

// Limits of a manifest. Real chains are far below them.
const (
	// MaxStores is the maximum number of stores.
	MaxStores = 4096
	// MaxNameBytes is the length of the longest name of a store; the shortest has 1 byte.
	MaxNameBytes = 1024
	// MaxManifestBytes is the maximum length of an encoded manifest, enough for more than 900,000
	// chunks.
	MaxManifestBytes = 64 << 20
)

// manifestVersion is the version of the encoding, the first number of an encoded manifest.
const manifestVersion = 1

// ErrInvalidManifest is wrapped by the errors about a manifest.
var ErrInvalidManifest = errors.New("invalid manifest")

// Format is the number of a snapshot format. It determines where the state is cut into chunks.
type Format uint32

// The formats, named by their maximum number of leaves in a chunk.
const (
	Format8192 Format = 0x5301
	Format512  Format = 0x5302
	Format32   Format = 0x5303
)

// Leaves returns L, the maximum number of leaves in a chunk. It returns false for an unknown
// format.
func (f Format) Leaves() (int64, bool) {
	switch f {
	case Format8192:
		return 8192, true
	case Format512:
		return 512, true
	case Format32:
		return 32, true
	}
	return 0, false
}

// limit is Leaves with an error for an unknown format.
func (f Format) limit() (int64, error) {
	n, ok := f.Leaves()
	if !ok {
		return 0, fmt.Errorf("format %#x is not supported, only %#x, %#x and %#x", uint32(f), uint32(Format8192), uint32(Format512), uint32(Format32))
	}
	return n, nil
}

// Manifest lists the chunks of a state. The app hash is computed from it.
type Manifest struct {
	Format Format // of its chunks; not part of the encoding
	Height int64  // H: this is the state after the block of this height
	Stores []Store
}

// Store is an IAVL tree of the multi-store. An empty store has no entries.
type Store struct {
	Name    string
	Entries []Entry
}

// Entry describes a chunk. The root of a chunk has at most L leaves, and is a store's root or has a
// parent with more than L leaves.
type Entry struct {
	Boundary Boundary // zero in the first entry of a store
	Root     Image
}

// Boundary is the inner node of the upper tree whose key is the first key of the chunk.
type Boundary struct {
	Height  uint8
	Version int64
}

// Chunks returns the number of chunks of all stores.
func (m *Manifest) Chunks() (n int) {
	for i := range m.Stores {
		n += len(m.Stores[i].Entries)
	}
	return n
}

// At returns the index of chunk k's store in m.Stores, and the chunk's index in that store's
// Entries. k counts the chunks of all stores from 0 and must be less than Chunks.
func (m *Manifest) At(k int) (store, entry int) {
	for k >= len(m.Stores[store].Entries) {
		k -= len(m.Stores[store].Entries)
		store++
	}
	return store, k
}

// Encode returns the only encoding of m (docs/spec/iavl.md#manifest):
//
//	manifest = uvarint(1) ‖ uvarint(H) ‖ uvarint(stores) ‖ store × stores
//	store    = uvarint(len name) ‖ name ‖ uvarint(m) ‖ entry × m
//	entry    = [not the first: boundary height:u8 ‖ uvarint(H − boundary version)] ‖ image of the chunk's root
func (m *Manifest) Encode() []byte {
	b := binary.AppendUvarint(nil, manifestVersion)
	b = binary.AppendUvarint(b, uint64(m.Height))
	b = binary.AppendUvarint(b, uint64(len(m.Stores)))
	for i := range m.Stores {
		s := &m.Stores[i]
		b = binary.AppendUvarint(b, uint64(len(s.Name)))
		b = append(b, s.Name...)
		b = binary.AppendUvarint(b, uint64(len(s.Entries)))
		for k := range s.Entries {
			e := &s.Entries[k]
			if k > 0 {
				b = append(b, e.Boundary.Height)
				b = binary.AppendUvarint(b, uint64(m.Height-e.Boundary.Version))
			}
			b = appendImage(b, m.Height, &e.Root)
		}
	}
	return b
}

// DecodeManifest is the inverse of Encode. It checks only the form; VerifyManifest also verifies
// the app hash. Its allocations are proportional to len(b). Keys in the result alias b.
func DecodeManifest(f Format, b []byte) (*Manifest, error) {
	r := wire.NewReader(b)
	m, err := decodeManifest(f, &r)
	if err == nil {
		err = r.End()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidManifest, err)
	}
	return m, nil
}

// SplitManifest returns the encoded manifest at the beginning of b, and the bytes after it. It
// checks only the form; VerifyManifest also verifies the app hash.
func SplitManifest(f Format, b []byte) (manifest, rest []byte, err error) {
	r := wire.NewReader(b)
	if _, err := decodeManifest(f, &r); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrInvalidManifest, err)
	}
	n := r.Offset()
	return b[:n:n], b[n:], nil
}

func decodeManifest(f Format, r *wire.Reader) (*Manifest, error) {
	limit, err := f.limit()
	if err != nil {
		return nil, err
	}
	if r.Len() > MaxManifestBytes {
		return nil, fmt.Errorf("%d bytes, at most %d are supported", r.Len(), MaxManifestBytes)
	}
	if v := r.Uvarint("version", math.MaxUint64); v != manifestVersion {
		r.Check("version", fmt.Errorf("%d, only %d is supported", v, manifestVersion))
	}
	m := &Manifest{Format: f, Height: int64(r.Uvarint("height", math.MaxInt64))}
	r.Check("height", checkHeight(m.Height))
	for range r.Uvarint("stores", MaxStores) {
		s := Store{Name: string(r.Bytes("name", MaxNameBytes))}
		if s.Name == "" {
			r.Check("name", errors.New("a store without a name"))
		}
		if n := len(m.Stores); n > 0 && strings.Compare(m.Stores[n-1].Name, s.Name) >= 0 {
			r.Check("name", fmt.Errorf("store %q after %q: names must ascend", s.Name, m.Stores[n-1].Name))
		}
		count := r.Uvarint("entries", MaxLeaves)
		for k := uint64(0); k < count && r.Err() == nil; k++ {
			s.Entries = append(s.Entries, readEntry(r, m.Height, k == 0, limit))
		}
		if err := r.Err(); err != nil {
			return nil, fmt.Errorf("store %d, entry %d: %w", len(m.Stores), max(0, len(s.Entries)-1), err)
		}
		m.Stores = append(m.Stores, s)
	}
	return m, r.Err()
}

func readEntry(r *wire.Reader, height int64, first bool, limit int64) (e Entry) {
	if !first {
		e.Boundary = Boundary{r.Byte("height of the boundary"), readVersion(r, height)}
	}
	e.Root = readImage(r, height)
	if e.Root.Size > limit {
		r.Check("leaves", fmt.Errorf("chunk of %d leaves, more than %d", e.Root.Size, limit))
	}
	return e
}

// VerifyManifest decodes a manifest and verifies it against a trusted height and its app hash,
// which is in the header of the next height. The images of all chunk roots in the result are
// verified.
func VerifyManifest(f Format, b []byte, height int64, appHash Hash) (*Manifest, error) {
	m, err := DecodeManifest(f, b)
	if err != nil {
		return nil, err
	}
	if m.Height != height {
		return nil, fmt.Errorf("%w: height %d, expected %d", ErrInvalidManifest, m.Height, height)
	}
	got, err := m.AppHash()
	if err != nil {
		return nil, err
	}
	if got != appHash {
		return nil, fmt.Errorf("%w: app hash %s, expected %s", ErrInvalidManifest, got, appHash)
	}
	return m, nil
}

// AppHash rebuilds the upper trees of all stores and returns the hash of the multi-store. It fails
// if a store is not a valid IAVL tree cut into its maximal chunks.
func (m *Manifest) AppHash() (Hash, error) {
	roots := make([]storeRoot, len(m.Stores))
	for i := range m.Stores {
		u, err := m.Upper(i)
		if err != nil {
			return Hash{}, err
		}
		roots[i] = storeRoot{m.Stores[i].Name, u.Hash}
	}
	return multiStoreHash(roots), nil
}

// Upper is the upper tree of a store: the nodes above its chunks.
type Upper struct {
	Hash Hash  // of the store's root
	Root Place // of the store's root; meaningless if the store is empty
	// Inner[i] is the inner node between chunks i−1 and i, whose key is the first key of chunk i.
	// Inner[0] is zero.
	Inner []Inner
	// First[i] is the index in the store of the first leaf of chunk i.
	First []int64
}

// Upper rebuilds the upper tree of store i.
func (m *Manifest) Upper(i int) (*Upper, error) {
	limit, err := m.Format.limit()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidManifest, err)
	}
	s := &m.Stores[i]
	if len(s.Entries) == 0 {
		return &Upper{Hash: emptyRoot}, nil
	}
	u := &Upper{First: make([]int64, len(s.Entries))}
	tree := shape{limit: m.Height, least: limit + 1, inner: make([]Inner, len(s.Entries))}
	var last subtree
	leaves := int64(0)
	for k := range s.Entries {
		e := &s.Entries[k]
		if k > 0 {
			err = tree.next(&last, gap{e.Boundary.Height, e.Boundary.Version}, k)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: store %q, entry %d: %w", ErrInvalidManifest, s.Name, k, err)
		}
		last = tree.part(&e.Root, e.Root.Hash(), k)
		u.First[k] = leaves
		leaves += e.Root.Size
	}
	if err := tree.finish(&last, maxHeight+1); err == nil && len(tree.open) > 0 {
		return nil, fmt.Errorf("%w: store %q: an inner node of height %d", ErrInvalidManifest, s.Name, tree.open[0].height)
	} else if err != nil {
		return nil, fmt.Errorf("%w: store %q: %w", ErrInvalidManifest, s.Name, err)
	}
	u.Hash, u.Root, u.Inner = last.hash, last.place, tree.inner
	return u, nil
}
