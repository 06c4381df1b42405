package iavlsync

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// Limits of a manifest, far above what chains have.
const (
	// MaxStores is the limit of stores.
	MaxStores = 4096
	// MaxNameBytes is the length of the longest name of a store; the shortest has 1 byte.
	MaxNameBytes = 1024
	// MaxManifestBytes is the limit of a manifest's encoding: more than 900,000 chunks.
	MaxManifestBytes = 64 << 20
)

// manifestVersion is the first number of a manifest.
const manifestVersion = 1

// ErrInvalidManifest is wrapped by the errors about a manifest.
var ErrInvalidManifest = errors.New("invalid manifest")

// Format is the number of a snapshot format. It decides where the state is cut.
type Format uint32

// The formats, by the number of leaves of their largest chunks.
const (
	Format8192 Format = 0x5301
	Format512  Format = 0x5302
	Format32   Format = 0x5303
)

// Leaves returns L, the limit of leaves in a chunk, and false for an unknown format.
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

// limit is Leaves with an error.
func (f Format) limit() (int64, error) {
	n, ok := f.Leaves()
	if !ok {
		return 0, fmt.Errorf("format %#x, known are %#x, %#x and %#x", uint32(f), uint32(Format8192), uint32(Format512), uint32(Format32))
	}
	return n, nil
}

// Manifest lists the chunks of a state. Its app hash follows from it.
type Manifest struct {
	Format Format // of its chunks; it does not travel
	Height int64  // H, of the block after which this is the state
	Stores []Store
}

// Store is an IAVL tree of the multi-store. It is empty without entries.
type Store struct {
	Name    string
	Entries []Entry
}

// Entry is a chunk: a node of at most L leaves whose parent has more, or which is a store's root.
type Entry struct {
	Boundary Boundary // zero in the first entry of a store
	Root     Image
}

// Boundary is the upper inner node whose key is the chunk's first key.
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

// At returns the places of chunk k in m.Stores and in that store's Entries. k is counted from 0
// over all stores, and less than Chunks.
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

// DecodeManifest is the inverse of Encode. It checks the form only; see VerifyManifest. Its
// allocations are proportional to len(b), of which keys in the result are parts.
func DecodeManifest(f Format, b []byte) (*Manifest, error) {
	m, rest, err := decodeManifest(f, b)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%d bytes after the end", len(rest))
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidManifest, err)
	}
	return m, nil
}

// SplitManifest returns the encoded manifest that b begins with, and what follows it. It checks the
// form only; see VerifyManifest.
func SplitManifest(f Format, b []byte) (manifest, rest []byte, err error) {
	_, rest, err = decodeManifest(f, b)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrInvalidManifest, err)
	}
	return b[: len(b)-len(rest) : len(b)-len(rest)], rest, nil
}

func decodeManifest(f Format, b []byte) (m *Manifest, rest []byte, err error) {
	limit, err := f.limit()
	if err != nil {
		return nil, nil, err
	}
	if len(b) > MaxManifestBytes {
		return nil, nil, fmt.Errorf("%d bytes, at most %d are supported", len(b), MaxManifestBytes)
	}
	r := reader{b: b}
	if v := r.uvarint(); r.err == nil && v != manifestVersion {
		return nil, nil, fmt.Errorf("version %d, known is %d", v, manifestVersion)
	}
	m = &Manifest{Format: f, Height: r.int64(maxInt64)}
	if r.err == nil {
		r.fail(checkHeight(m.Height))
	}
	for range r.int64(MaxStores) {
		s := Store{Name: string(r.bytes(MaxNameBytes))}
		if r.err == nil && s.Name == "" {
			r.fail(errors.New("a store without a name"))
		}
		if n := len(m.Stores); r.err == nil && n > 0 && strings.Compare(m.Stores[n-1].Name, s.Name) >= 0 {
			r.fail(fmt.Errorf("store %q after %q: names ascend", s.Name, m.Stores[n-1].Name))
		}
		count := r.int64(MaxLeaves)
		for k := int64(0); k < count && r.err == nil; k++ {
			s.Entries = append(s.Entries, r.entry(m.Height, k == 0, limit))
		}
		if r.err != nil {
			return nil, nil, fmt.Errorf("store %d, entry %d: %w", len(m.Stores), max(0, len(s.Entries)-1), r.err)
		}
		m.Stores = append(m.Stores, s)
	}
	return m, r.b, r.err
}

func (r *reader) entry(height int64, first bool, limit int64) (e Entry) {
	if !first {
		e.Boundary = Boundary{r.byte(), r.version(height)}
	}
	e.Root = r.image(height)
	if r.err == nil && e.Root.Size > limit {
		r.fail(fmt.Errorf("chunk of %d leaves, more than %d", e.Root.Size, limit))
	}
	return e
}

// VerifyManifest decodes a manifest and proves it against a trusted height and its app hash, which
// stands in the header of the next height. After that the image of every chunk's root is known to
// be true.
func VerifyManifest(f Format, b []byte, height int64, appHash Hash) (*Manifest, error) {
	m, err := DecodeManifest(f, b)
	if err != nil {
		return nil, err
	}
	if m.Height != height {
		return nil, fmt.Errorf("%w: it is of height %d, not %d", ErrInvalidManifest, m.Height, height)
	}
	got, err := m.AppHash()
	if err != nil {
		return nil, err
	}
	if got != appHash {
		return nil, fmt.Errorf("%w: it leads to the app hash %s, not to %s", ErrInvalidManifest, got, appHash)
	}
	return m, nil
}

// AppHash rebuilds the stores and returns the hash of the multi-store. It fails if a store is not
// an IAVL tree that is cut into its maximal chunks.
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
	// Inner has at i the inner node between chunks i−1 and i, whose key is the first key of chunk
	// i. Inner[0] is zero.
	Inner []Inner
	// First has at i the number of the first leaf of chunk i, counted in the store.
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
