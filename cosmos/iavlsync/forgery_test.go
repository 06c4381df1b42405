package iavlsync_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/iavlsync/iavlsynctest"
	"github.com/starling-kv/starling/internal/seeds"
)

// honest is a state whose manifest and chunks are forged.
type honest struct {
	f        iavlsync.Format
	height   int64
	state    iavlsynctest.State
	app      iavlsync.Hash
	manifest []byte
	m        *iavlsync.Manifest
	nodes    []*iavlsynctest.Node // the chunks' roots
	chunks   [][]byte
	stale    *honest // an older state of the same chain, or nil
}

func newHonest(t *testing.T, f iavlsync.Format, height int64, s iavlsynctest.State) *honest {
	h := &honest{f: f, height: height, state: s, app: iavlsync.Hash(s.AppHash()), manifest: s.Manifest(height, limit(f))}
	var err error
	h.m, err = iavlsync.VerifyManifest(f, h.manifest, height, h.app)
	require.NoError(t, err)
	for _, name := range s.Names() {
		h.nodes = append(h.nodes, s[name].Chunks(limit(f))...)
	}
	for _, n := range h.nodes {
		h.chunks = append(h.chunks, n.Chunk())
	}
	return h
}

// randomHonest returns a state of a few stores and chunks, with an older one of the same chain.
func randomHonest(t *testing.T, rnd *rand.Rand) *honest {
	states := iavlsynctest.RandomStates(rnd, 150, 8)
	for bytes.Equal(states[7].AppHash(), states[5].AppHash()) { // the older one must differ
		states = iavlsynctest.RandomStates(rnd, 150, 8)
	}
	h := newHonest(t, iavlsync.Format32, 8, states[7])
	h.stale = newHonest(t, iavlsync.Format32, 6, states[5])
	return h
}

// decoded returns a copy of the manifest.
func (h *honest) decoded(t *testing.T) *iavlsync.Manifest {
	m, err := iavlsync.DecodeManifest(h.f, bytes.Clone(h.manifest))
	require.NoError(t, err)
	return m
}

// requireRefused fails the test if a forged manifest is accepted.
func (h *honest) requireRefused(t *testing.T, forged []byte, what string) {
	t.Helper()
	if bytes.Equal(forged, h.manifest) {
		return
	}
	_, err := iavlsync.VerifyManifest(h.f, forged, h.height, h.app)
	if err == nil {
		t.Fatalf("%s: manifest %x is accepted", what, forged)
	}
	if !errors.Is(err, iavlsync.ErrInvalidManifest) {
		t.Fatal(err)
	}
}

// requireChunkRefused fails the test if a forged chunk k is accepted.
func (h *honest) requireChunkRefused(t *testing.T, k int, forged []byte, what string) {
	t.Helper()
	if bytes.Equal(forged, h.chunks[k]) {
		return
	}
	_, err := iavlsync.VerifyChunk(&entries(h.m)[k].Root, forged)
	if err == nil {
		t.Fatalf("%s: chunk %d is accepted as %x", what, k, forged)
	}
	if !errors.Is(err, iavlsync.ErrInvalidChunk) {
		t.Fatal(err)
	}
}

// eachDamage calls fn with every change of a single bit or byte.
func eachDamage(good []byte, everyValue bool, fn func(forged []byte)) {
	for i := range good {
		for bit := range 8 {
			b := bytes.Clone(good)
			b[i] ^= 1 << bit
			fn(b)
		}
		for v := range 256 {
			if everyValue {
				b := bytes.Clone(good)
				b[i] = byte(v)
				fn(b)
			}
		}
		fn(slices.Concat(good[:i], good[i+1:]))
		fn(slices.Concat(good[:i+1], good[i:]))
		fn(slices.Concat(good[:i], []byte{0}, good[i:]))
		fn(good[:i:i])
	}
	fn(append(bytes.Clone(good), 0))
}

func TestEveryBitAndByte(t *testing.T) {
	t.Parallel()
	h := newHonest(t, iavlsync.Format32, 4, iavlsynctest.RandomState(seeds.Rand(t), 50, 4))
	eachDamage(h.manifest, !testing.Short(), func(forged []byte) { h.requireRefused(t, forged, "damaged") })
	for k, chunk := range h.chunks {
		eachDamage(chunk, !testing.Short() && k%3 == 0, func(forged []byte) { h.requireChunkRefused(t, k, forged, "damaged") })
	}
	for _, n := range h.nodes {
		if n.Height() == 0 {
			continue
		}
		good := n.Halves(h.height)[1:]
		_, _, err := iavlsync.VerifyHalves(imageOf(n), h.height, good)
		require.NoError(t, err)
		eachDamage(good, false, func(forged []byte) {
			_, _, err := iavlsync.VerifyHalves(imageOf(n), h.height, forged)
			require.ErrorIs(t, err, iavlsync.ErrInvalidChunk)
		})
		break
	}
}

// manifestMoves change a manifest in ways that a Byzantine peer might. Each gets a copy of the
// decoded manifest, one of its stores with entries, and the index of one entry.
var manifestMoves = map[string]func(h *honest, rnd *rand.Rand, m *iavlsync.Manifest, s *iavlsync.Store, k int){
	"a leaf moved to another chunk": func(_ *honest, rnd *rand.Rand, _ *iavlsync.Manifest, s *iavlsync.Store, k int) {
		n := int64(1 + rnd.IntN(3))
		s.Entries[k].Root.Size += n
		s.Entries[rnd.IntN(len(s.Entries))].Root.Size -= n
	},
	"versions swapped": func(_ *honest, rnd *rand.Rand, _ *iavlsync.Manifest, s *iavlsync.Store, k int) {
		a, b := &s.Entries[k].Root, &s.Entries[rnd.IntN(len(s.Entries))].Root
		a.Version, b.Version = b.Version, a.Version
	},
	"another version": func(h *honest, rnd *rand.Rand, _ *iavlsync.Manifest, s *iavlsync.Store, k int) {
		s.Entries[k].Root.Version = 1 + rnd.Int64N(h.height)
	},
	"another height": func(_ *honest, rnd *rand.Rand, _ *iavlsync.Manifest, s *iavlsync.Store, k int) {
		s.Entries[k].Root.Height += uint8(rnd.IntN(3) - 1)
	},
	"boundaries swapped": func(_ *honest, rnd *rand.Rand, _ *iavlsync.Manifest, s *iavlsync.Store, k int) {
		if j := rnd.IntN(len(s.Entries)); j > 0 && k > 0 {
			s.Entries[k].Boundary, s.Entries[j].Boundary = s.Entries[j].Boundary, s.Entries[k].Boundary
		}
	},
	"another boundary": func(h *honest, rnd *rand.Rand, _ *iavlsync.Manifest, s *iavlsync.Store, k int) {
		if k > 0 {
			s.Entries[k].Boundary = iavlsync.Boundary{Height: s.Entries[k].Boundary.Height + uint8(rnd.IntN(3)-1), Version: 1 + rnd.Int64N(h.height)}
		}
	},
	"chunks swapped": func(_ *honest, rnd *rand.Rand, _ *iavlsync.Manifest, s *iavlsync.Store, k int) {
		j := rnd.IntN(len(s.Entries))
		s.Entries[k].Root, s.Entries[j].Root = s.Entries[j].Root, s.Entries[k].Root
	},
	"children swapped": func(_ *honest, _ *rand.Rand, _ *iavlsync.Manifest, s *iavlsync.Store, k int) {
		r := &s.Entries[k].Root
		r.Left, r.Right = r.Right, r.Left
	},
	"a chunk is missing": func(_ *honest, _ *rand.Rand, _ *iavlsync.Manifest, s *iavlsync.Store, k int) {
		s.Entries = slices.Delete(s.Entries, k, k+1)
	},
	"a chunk twice": func(_ *honest, _ *rand.Rand, _ *iavlsync.Manifest, s *iavlsync.Store, k int) {
		s.Entries = slices.Insert(s.Entries, k, s.Entries[k])
	},
	"a stale chunk": func(h *honest, rnd *rand.Rand, _ *iavlsync.Manifest, s *iavlsync.Store, k int) {
		if i := slices.IndexFunc(h.stale.m.Stores, func(o iavlsync.Store) bool { return o.Name == s.Name }); i >= 0 {
			if old := h.stale.m.Stores[i].Entries; len(old) > 0 {
				s.Entries[k].Root = old[min(k, len(old)-1, rnd.IntN(100))].Root
			}
		}
	},
	"a stale store": func(h *honest, _ *rand.Rand, _ *iavlsync.Manifest, s *iavlsync.Store, _ int) {
		if i := slices.IndexFunc(h.stale.m.Stores, func(o iavlsync.Store) bool { return o.Name == s.Name }); i >= 0 {
			s.Entries = h.stale.m.Stores[i].Entries
		}
	},
	"a chunk in halves": func(h *honest, _ *rand.Rand, _ *iavlsync.Manifest, s *iavlsync.Store, k int) {
		root := h.state[s.Name].Chunks(limit(h.f))[k]
		if root.Height() > 0 {
			old := s.Entries[k].Boundary
			s.Entries = slices.Replace(s.Entries, k, k+1, iavlsync.Entry{Boundary: old, Root: *imageOf(root.Left)},
				iavlsync.Entry{Boundary: iavlsync.Boundary{Height: uint8(root.Height()), Version: root.Version}, Root: *imageOf(root.Right)})
		}
	},
	"a subtree as one chunk": func(h *honest, rnd *rand.Rand, _ *iavlsync.Manifest, s *iavlsync.Store, _ int) {
		root := h.state[s.Name]
		parts := func(n *iavlsynctest.Node) int { return len(n.Chunks(limit(h.f))) }
		for n, first := root, 0; parts(n) > 1; {
			if rnd.IntN(2) == 0 || parts(n.Left) == 1 && parts(n.Right) == 1 {
				s.Entries = slices.Replace(s.Entries, first, first+parts(n), iavlsync.Entry{Boundary: s.Entries[first].Boundary, Root: *imageOf(n)})
				return
			}
			if parts(n.Left) > 1 {
				n = n.Left
			} else {
				n, first = n.Right, first+parts(n.Left)
			}
		}
	},
	"a leaf for a store": func(h *honest, rnd *rand.Rand, _ *iavlsync.Manifest, s *iavlsync.Store, _ int) {
		s.Entries = []iavlsync.Entry{{Root: iavlsync.Image{Size: 1, Version: 1 + rnd.Int64N(h.height), Key: []byte("k")}}}
	},
	"an empty store": func(_ *honest, _ *rand.Rand, _ *iavlsync.Manifest, s *iavlsync.Store, _ int) { s.Entries = nil },
	"stores swapped": func(_ *honest, rnd *rand.Rand, m *iavlsync.Manifest, s *iavlsync.Store, _ int) {
		o := &m.Stores[rnd.IntN(len(m.Stores))]
		o.Entries, s.Entries = s.Entries, o.Entries
	},
	"a store renamed": func(_ *honest, rnd *rand.Rand, _ *iavlsync.Manifest, s *iavlsync.Store, _ int) {
		s.Name += string(rune('a' + rnd.IntN(26)))
	},
	"a store is missing": func(_ *honest, rnd *rand.Rand, m *iavlsync.Manifest, _ *iavlsync.Store, _ int) {
		i := rnd.IntN(len(m.Stores))
		m.Stores = slices.Delete(m.Stores, i, i+1)
	},
	"a store more": func(_ *honest, rnd *rand.Rand, m *iavlsync.Manifest, s *iavlsync.Store, _ int) {
		i := rnd.IntN(len(m.Stores) + 1)
		m.Stores = slices.Insert(m.Stores, i, iavlsync.Store{Name: string(rune('a' + rnd.IntN(26))), Entries: s.Entries})
	},
	"another height of the state": func(_ *honest, rnd *rand.Rand, m *iavlsync.Manifest, _ *iavlsync.Store, _ int) {
		m.Height += int64(rnd.IntN(5) - 2)
	},
}

// TestManifestMoves and TestChunkMoves together make 100,000 forgeries, by one move or by two.
func TestManifestMoves(t *testing.T) {
	t.Parallel()
	rnd := seeds.Rand(t)
	h := randomHonest(t, rnd)
	names := iavlsynctest.Keys(manifestMoves)
	forged, alone := 0, map[string]int{}
	for tried := 0; forged < moves(t); tried++ {
		require.Less(t, tried, 10*moves(t))
		m, what := h.decoded(t), ""
		for range 1 + rnd.IntN(2) {
			s := &m.Stores[rnd.IntN(len(m.Stores))]
			if len(s.Entries) == 0 || len(m.Stores) < len(h.m.Stores) || h.state[s.Name] == nil || len(h.state[s.Name].Chunks(limit(h.f))) != len(s.Entries) {
				continue
			}
			name := names[rnd.IntN(len(names))]
			what += name + ", "
			manifestMoves[name](h, rnd, m, s, rnd.IntN(len(s.Entries)))
		}
		b := m.Encode()
		if !bytes.Equal(b, h.manifest) {
			forged++
			alone[what]++
		}
		h.requireRefused(t, b, what)
	}
	for _, name := range names {
		require.Positive(t, alone[name+", "], "%s: the move changes nothing", name)
	}
	h.requireRefused(t, h.stale.manifest, "stale")
}

func moves(t *testing.T) int {
	if testing.Short() {
		return 5_000
	}
	return 50_000
}

// record is a leaf of a chunk, with the inner node before it.
type record struct {
	height      uint8
	above, back uint64
	key, value  []byte
}

// records decodes an honest chunk.
func records(t *testing.T, b []byte) (rs []record) {
	uvarint := func() uint64 {
		v, n := binary.Uvarint(b)
		require.Positive(t, n)
		b = b[n:]
		return v
	}
	take := func() (part []byte) {
		n := uvarint()
		part, b = b[:n:n], b[n:]
		return part
	}
	for first := true; len(b) > 0; first = false {
		var r record
		if !first {
			r.height, b = b[0], b[1:]
			r.above = uvarint()
		}
		r.back = uvarint()
		r.key, r.value = take(), take()
		rs = append(rs, r)
	}
	return rs
}

func encode(rs []record) (b []byte) {
	for i, r := range rs {
		if i > 0 {
			b = iavlsync.AppendInner(b, r.height, int64(r.above))
		}
		b = iavlsync.AppendLeaf(b, int64(r.back), 0, r.key, r.value)
	}
	return b
}

// chunkMoves change the records of a chunk in ways that a Byzantine peer might. i and j are the
// indexes of two records.
var chunkMoves = map[string]func(rnd *rand.Rand, rs []record, i, j int) []record{
	"heights swapped": func(_ *rand.Rand, rs []record, i, j int) []record {
		rs[i].height, rs[j].height = rs[j].height, rs[i].height
		return rs
	},
	"inner versions swapped": func(_ *rand.Rand, rs []record, i, j int) []record {
		rs[i].above, rs[j].above = rs[j].above, rs[i].above
		return rs
	},
	"leaf versions swapped": func(_ *rand.Rand, rs []record, i, j int) []record {
		rs[i].back, rs[j].back = rs[j].back, rs[i].back
		return rs
	},
	"a version moved from an inner node to a leaf": func(_ *rand.Rand, rs []record, i, j int) []record {
		rs[i].above++
		rs[j].back++
		return rs
	},
	"a version moved from a leaf to an inner node": func(_ *rand.Rand, rs []record, i, j int) []record {
		if rs[i].above > 0 && rs[j].back > 0 {
			rs[i].above--
			rs[j].back--
		}
		return rs
	},
	"all one version older": func(_ *rand.Rand, rs []record, _, _ int) []record {
		for k := range rs {
			rs[k].back++
		}
		return rs
	},
	"values swapped": func(_ *rand.Rand, rs []record, i, j int) []record {
		rs[i].value, rs[j].value = rs[j].value, rs[i].value
		return rs
	},
	"leaves swapped": func(_ *rand.Rand, rs []record, i, j int) []record {
		rs[i], rs[j] = rs[j], rs[i]
		return rs
	},
	"a byte moved from value to key": func(_ *rand.Rand, rs []record, i, _ int) []record {
		if v := rs[i].value; len(v) > 0 {
			rs[i].key, rs[i].value = append(bytes.Clone(rs[i].key), v[0]), v[1:]
		}
		return rs
	},
	"a byte moved from key to value": func(_ *rand.Rand, rs []record, i, _ int) []record {
		if k := rs[i].key; len(k) > 0 {
			rs[i].key, rs[i].value = k[:len(k)-1], append(bytes.Clone(k[len(k)-1:]), rs[i].value...)
		}
		return rs
	},
	"a key extended": func(rnd *rand.Rand, rs []record, i, _ int) []record {
		rs[i].key = append(bytes.Clone(rs[i].key), byte(rnd.IntN(3)))
		return rs
	},
	"a leaf is missing": func(_ *rand.Rand, rs []record, i, _ int) []record { return slices.Delete(rs, i, i+1) },
	"a leaf more": func(_ *rand.Rand, rs []record, i, _ int) []record {
		r := rs[i]
		r.key = append(bytes.Clone(r.key), 0)
		return slices.Insert(rs, i+1, r)
	},
	"a height changed": func(rnd *rand.Rand, rs []record, i, _ int) []record {
		rs[i].height += uint8(rnd.IntN(3) - 1)
		return rs
	},
	"a rotation": func(_ *rand.Rand, rs []record, i, _ int) []record {
		if i+1 < len(rs) {
			rs[i].height, rs[i+1].height = rs[i+1].height, rs[i].height
		}
		return rs
	},
}

func TestChunkMoves(t *testing.T) {
	t.Parallel()
	rnd := seeds.Rand(t)
	h := randomHonest(t, rnd)
	names := iavlsynctest.Keys(chunkMoves)
	forged, alone := 0, map[string]int{}
	for tried := 0; forged < moves(t); tried++ {
		require.Less(t, tried, 10*moves(t))
		k := rnd.IntN(len(h.chunks))
		rs, what := records(t, h.chunks[k]), ""
		require.Equal(t, h.chunks[k], encode(rs))
		for range 1 + rnd.IntN(2) {
			if len(rs) > 0 {
				name := names[rnd.IntN(len(names))]
				what += name + ", "
				rs = chunkMoves[name](rnd, rs, rnd.IntN(len(rs)), rnd.IntN(len(rs)))
			}
		}
		b := encode(rs)
		if !bytes.Equal(b, h.chunks[k]) {
			forged++
			alone[what]++
		}
		h.requireChunkRefused(t, k, b, what)
	}
	for _, name := range names {
		require.Positive(t, alone[name+", "], "%s: the move changes nothing", name)
	}
	for k := range h.chunks {
		for _, other := range slices.Concat(h.chunks, h.stale.chunks) {
			h.requireChunkRefused(t, k, other, "another chunk")
		}
	}
}

// TestInnerKeysDoNotTravel checks that the keys of inner nodes, which IAVL's hash does not bind,
// have no influence on manifests and chunks.
func TestInnerKeysDoNotTravel(t *testing.T) {
	rnd := seeds.Rand(t)
	tree := &iavlsynctest.Tree{}
	for range 200 {
		tree.Set(binary.BigEndian.AppendUint64(nil, rnd.Uint64()), []byte("value"))
	}
	tree.Save()
	s := iavlsynctest.State{"bank": tree.Root}
	honest := newHonest(t, iavlsync.Format32, 1, s)
	all := slices.Concat(append(honest.chunks, honest.manifest)...)
	tree.Root.Leaves(func(leaf *iavlsynctest.Node) {
		require.Equal(t, 1, bytes.Count(all, leaf.Key), "each key is sent once, in its leaf")
	})

	r := &iavlsynctest.Reader{}
	lying := lyingReader{r, rnd}
	store, err := iavlsync.Cut(iavlsync.Format32, 1, "bank", r.Key(tree.Root), lying)
	require.NoError(t, err)
	require.Equal(t, honest.m.Stores[0], store)
	first := int64(0)
	for _, chunk := range honest.chunks {
		e := entries(honest.m)[slices.IndexFunc(honest.chunks, func(c []byte) bool { return &c[0] == &chunk[0] })]
		answer, err := iavlsync.Answer(&iavlsync.Request{Height: 1, Store: "bank", First: first, Leaves: e.Root.Size}, r.Key(tree.Root), lying)
		require.NoError(t, err)
		require.Equal(t, chunk, answer[1:])
		first += e.Root.Size
	}
}

// lyingReader gives inner nodes random keys.
type lyingReader struct {
	*iavlsynctest.Reader
	rnd *rand.Rand
}

func (r lyingReader) Node(key []byte) (*iavlsync.Node, error) {
	n, err := r.Reader.Node(key)
	if err == nil && n.Height > 0 {
		n.Key = binary.BigEndian.AppendUint64(nil, r.rnd.Uint64())
	}
	return n, err
}
