package iavlsync_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/iavlsync/iavlsynctest"
	"github.com/starling-kv/starling/internal/spectest"
)

const vectorsFile = "testdata/vectors.json"

var update = flag.Bool("update", false, "write "+vectorsFile)

type (
	vectorOps   = []iavlsynctest.VectorOp
	vectorBlock = map[string][]iavlsynctest.VectorOp
)

func setOp(key, value string) iavlsynctest.VectorOp {
	v := iavlsynctest.Hex(value)
	return iavlsynctest.VectorOp{Key: iavlsynctest.Hex(key), Value: &v}
}

func removeOp(key string) iavlsynctest.VectorOp {
	return iavlsynctest.VectorOp{Key: iavlsynctest.Hex(key)}
}

// vectorStates are the states from which the vectors are generated.
func vectorStates() []iavlsynctest.VectorState {
	var ascending, removed vectorOps
	for i := range 100 {
		ascending = append(ascending, setOp(fmt.Sprintf("%03d", i), fmt.Sprint("v", i)))
	}
	for i := range 40 {
		removed = append(removed, removeOp(fmt.Sprintf("%03d", 5*i/2)))
	}
	scattered := func(n, seed int) (ops vectorOps) {
		for i := range n {
			key := binary.BigEndian.AppendUint16(nil, uint16(40503*(i+seed)))
			ops = append(ops, setOp(string(key), string(bytes.Repeat([]byte{byte(i)}, (i*i+seed)%5))))
		}
		return ops
	}
	return []iavlsynctest.VectorState{
		{Name: "one leaf and an empty store", Format: uint32(iavlsync.Format8192), Height: 1, Blocks: []vectorBlock{
			{"empty": {}, "mint": {setOp("minter", "0.13")}}}},
		{Name: "two leaves, one with an empty value", Format: uint32(iavlsync.Format32), Height: 2, Blocks: []vectorBlock{
			{"a": {setOp("k", "v")}}, {"a": {setOp("j", "")}}}},
		{Name: "a removal leaves a root newer than its children", Format: uint32(iavlsync.Format32), Height: 5, Blocks: []vectorBlock{
			{"a": {setOp("a", "1"), setOp("b", "2"), setOp("c", "3")}}, {}, {}, {"a": {removeOp("c")}}}},
		{Name: "rotations, removals, a store that was added late", Format: uint32(iavlsync.Format32), Height: 7, Blocks: []vectorBlock{
			{"bank": ascending[:33], "gov": {setOp("x", "y")}}, {"bank": ascending[33:]}, {"bank": removed}, {},
			{"bank": ascending[10:20], "upgrade": scattered(20, 1)}, {"upgrade": scattered(40, 15)}}},
		{Name: "unchanged for long", Format: uint32(iavlsync.Format32), Height: 300, Blocks: []vectorBlock{
			{"bank": scattered(50, 0)}, {"bank": scattered(50, 30)}}},
		{Name: "the same in chunks of 512", Format: uint32(iavlsync.Format512), Height: 300, Blocks: []vectorBlock{
			{"bank": scattered(50, 0)}, {"bank": scattered(50, 30)}}},
	}
}

// makeVectors completes the vectors of the states with the code under test.
func makeVectors(t *testing.T) (v iavlsynctest.Vectors) {
	v.States = vectorStates()
	for i := range v.States {
		vs := &v.States[i]
		s, r := vs.State(), &iavlsynctest.Reader{}
		m, err := r.Cut(iavlsync.Format(vs.Format), vs.Height, s)
		require.NoError(t, err)
		app, err := m.AppHash()
		require.NoError(t, err)
		vs.AppHash, vs.Manifest = app[:], m.Encode()
		for k, store := range m.Stores {
			u, err := m.Upper(k)
			require.NoError(t, err)
			out := iavlsynctest.VectorStore{Name: store.Name, Root: u.Hash[:], Chunks: []iavlsynctest.Hex{}}
			for j, e := range store.Entries {
				q := &iavlsync.Request{Height: vs.Height, Store: store.Name, First: u.First[j], Leaves: e.Root.Size}
				answer, err := iavlsync.Answer(q, r.Key(s[store.Name]), r)
				require.NoError(t, err)
				out.Chunks = append(out.Chunks, answer[1:])
			}
			if root := s[store.Name]; root != nil && root.Height() > 0 {
				out.Halves = iavlsync.AppendHalves(nil, vs.Height, imageOf(root.Left), imageOf(root.Right))
			}
			vs.Stores = append(vs.Stores, out)
		}
	}
	for _, q := range []iavlsync.Request{
		{Height: 1, Store: "a", Leaves: 1},
		{Height: 300, Store: "bank", First: 1 << 14, Leaves: 8191},
		{Height: 1<<63 - 1, Store: "wasm", First: 1<<31 - 2, Leaves: 1, Offset: 15 * iavlsync.PartBytes},
	} {
		v.Requests = append(v.Requests, iavlsynctest.VectorRequest{Height: q.Height, Store: q.Store, First: q.First, Leaves: q.Leaves,
			Offset: q.Offset, Encoded: q.Encode()})
	}
	v.Invalid = invalidVectors(t, v.States)
	return v
}

func TestVectors(t *testing.T) {
	made := makeVectors(t)
	if *update {
		b, err := json.MarshalIndent(made, "", " ")
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(vectorsFile, append(b, '\n'), 0o644))
	}
	v := iavlsynctest.LoadVectors(t, vectorsFile)
	want, err := json.Marshal(v)
	require.NoError(t, err)
	got, err := json.Marshal(made)
	require.NoError(t, err)
	require.JSONEq(t, string(want), string(got), "to regenerate the vectors: go test -run TestVectors -update")

	for _, vs := range v.States {
		t.Run(vs.Name, func(t *testing.T) {
			s, f := vs.State(), iavlsync.Format(vs.Format)
			require.Equal(t, s.AppHash(), []byte(vs.AppHash))
			require.Equal(t, s.Manifest(vs.Height, limit(f)), []byte(vs.Manifest))
			m, err := iavlsync.VerifyManifest(f, vs.Manifest, vs.Height, iavlsync.Hash(vs.AppHash))
			require.NoError(t, err)
			for i, store := range vs.Stores {
				root := s[store.Name]
				require.Equal(t, root.Hash(), []byte(store.Root))
				chunks := root.Chunks(limit(f))
				require.Len(t, store.Chunks, len(chunks))
				for k, c := range chunks {
					require.Equal(t, c.Chunk(), []byte(store.Chunks[k]))
					requireChunk(t, &m.Stores[i].Entries[k].Root, store.Chunks[k], c)
				}
				if store.Halves != nil {
					require.Equal(t, root.Halves(vs.Height), []byte(store.Halves))
					_, _, err := iavlsync.VerifyHalves(imageOf(root), vs.Height, store.Halves[1:])
					require.NoError(t, err)
				}
			}
		})
	}
	for _, vq := range v.Requests {
		q, err := iavlsync.DecodeRequest(vq.Encoded)
		require.NoError(t, err)
		require.Equal(t, iavlsync.Request{Height: vq.Height, Store: vq.Store, First: vq.First, Leaves: vq.Leaves, Offset: vq.Offset}, q)
	}
	for _, bad := range v.Invalid {
		t.Run(bad.Name, func(t *testing.T) {
			vs := v.States[slices.IndexFunc(v.States, func(s iavlsynctest.VectorState) bool { return s.Name == bad.State })]
			f := iavlsync.Format(vs.Format)
			if bad.Chunk < 0 {
				_, err := iavlsync.VerifyManifest(f, bad.Bytes, vs.Height, iavlsync.Hash(vs.AppHash))
				require.ErrorIs(t, err, iavlsync.ErrInvalidManifest)
				return
			}
			m, err := iavlsync.VerifyManifest(f, vs.Manifest, vs.Height, iavlsync.Hash(vs.AppHash))
			require.NoError(t, err)
			_, err = iavlsync.VerifyChunk(&entries(m)[bad.Chunk].Root, bad.Bytes)
			require.ErrorIs(t, err, iavlsync.ErrInvalidChunk)
		})
	}
}

// entries returns the entries of all stores.
func entries(m *iavlsync.Manifest) (all []*iavlsync.Entry) {
	for i := range m.Stores {
		for k := range m.Stores[i].Entries {
			all = append(all, &m.Stores[i].Entries[k])
		}
	}
	return all
}

// invalidVectors returns malformed and forged messages that a receiver must reject.
func invalidVectors(t *testing.T, states []iavlsynctest.VectorState) (bad []iavlsynctest.VectorInvalid) {
	of := func(i int) (vs *iavlsynctest.VectorState, m *iavlsync.Manifest) {
		vs = &states[i]
		m, err := iavlsync.DecodeManifest(iavlsync.Format(vs.Format), bytes.Clone(vs.Manifest))
		require.NoError(t, err)
		return vs, m
	}
	manifest := func(i int, name string, change func(b []byte, m *iavlsync.Manifest) []byte) {
		vs, m := of(i)
		b := change(bytes.Clone(vs.Manifest), m)
		require.NotEqual(t, []byte(vs.Manifest), b, name)
		bad = append(bad, iavlsynctest.VectorInvalid{Name: "manifest: " + name, State: vs.Name, Chunk: -1, Bytes: b})
	}
	chunk := func(i int, name string, change func(b []byte) []byte) {
		vs, _ := of(i)
		store := slices.IndexFunc(vs.Stores, func(s iavlsynctest.VectorStore) bool { return len(s.Chunks) > 0 })
		good := vs.Stores[store].Chunks[0]
		b := change(bytes.Clone(good))
		require.NotEqual(t, []byte(good), b, name)
		bad = append(bad, iavlsynctest.VectorInvalid{Name: "chunk: " + name, State: vs.Name, Chunk: 0, Bytes: b})
	}
	type M = *iavlsync.Manifest
	manifest(0, "another version", func(b []byte, _ M) []byte { b[0] = 2; return b })
	manifest(0, "a byte after the end", func(b []byte, _ M) []byte { return append(b, 0) })
	manifest(0, "the last byte is missing", func(b []byte, _ M) []byte { return b[:len(b)-1] })
	manifest(0, "a uvarint that is too long", func(b []byte, _ M) []byte { return append([]byte{0x81, 0}, b[1:]...) })
	manifest(0, "the same state at another height", func(_ []byte, m M) []byte { m.Height++; return m.Encode() })
	manifest(0, "without the empty store", func(_ []byte, m M) []byte { m.Stores = m.Stores[1:]; return m.Encode() })
	manifest(0, "stores in another order", func(_ []byte, m M) []byte { slices.Reverse(m.Stores); return m.Encode() })
	manifest(0, "another name", func(_ []byte, m M) []byte { m.Stores[0].Name = "emptz"; return m.Encode() })
	manifest(3, "a leaf moved to the neighbour", func(_ []byte, m M) []byte {
		m.Stores[0].Entries[0].Root.Size--
		m.Stores[0].Entries[1].Root.Size++
		return m.Encode()
	})
	manifest(3, "versions of neighbours swapped", func(_ []byte, m M) []byte {
		e := m.Stores[0].Entries
		e[0].Root.Version, e[2].Root.Version = e[2].Root.Version, e[0].Root.Version
		return m.Encode()
	})
	manifest(3, "a boundary of an older version", func(_ []byte, m M) []byte { m.Stores[0].Entries[1].Boundary.Version--; return m.Encode() })
	manifest(3, "a boundary that is too high", func(_ []byte, m M) []byte { m.Stores[0].Entries[1].Boundary.Height++; return m.Encode() })
	manifest(3, "an entry is missing", func(_ []byte, m M) []byte {
		m.Stores[0].Entries = slices.Delete(m.Stores[0].Entries, 1, 2)
		return m.Encode()
	})
	manifest(4, "the whole store as one chunk, which is too large", func(_ []byte, m M) []byte {
		m.Stores[0].Entries = []iavlsync.Entry{{Root: *imageOf(states[4].State()["bank"])}}
		return m.Encode()
	})
	manifest(5, "two chunks that could be one", func(_ []byte, m M) []byte {
		root := states[5].State()["bank"]
		m.Stores[0].Entries = []iavlsync.Entry{{Root: *imageOf(root.Left)},
			{Boundary: iavlsync.Boundary{Height: uint8(root.Height()), Version: root.Version}, Root: *imageOf(root.Right)}}
		return m.Encode()
	})
	chunk(1, "a byte after the end", func(b []byte) []byte { return append(b, 0) })
	chunk(1, "the last byte is missing", func(b []byte) []byte { return b[:len(b)-1] })
	chunk(1, "empty", func([]byte) []byte { return []byte{} })
	chunk(1, "only the first leaf", func([]byte) []byte { return []byte{0, 1, 'j', 0} })
	chunk(1, "a uvarint that is too long", func(b []byte) []byte { return append([]byte{0x80, 0}, b[1:]...) })
	chunk(1, "a byte moved from the value to the key", func([]byte) []byte { return []byte{0, 1, 'j', 0, 1, 0, 1, 2, 'k', 'v', 0} })
	chunk(1, "leaves swapped", func([]byte) []byte { return []byte{1, 1, 'k', 1, 'v', 1, 0, 0, 1, 'j', 0} })
	chunk(1, "another version", func([]byte) []byte { return []byte{1, 1, 'j', 0, 1, 0, 1, 1, 'k', 1, 'v'} })
	chunk(1, "a version below 1", func([]byte) []byte { return []byte{2, 1, 'j', 0, 1, 0, 1, 1, 'k', 1, 'v'} })
	chunk(1, "another height", func([]byte) []byte { return []byte{0, 1, 'j', 0, 2, 0, 1, 1, 'k', 1, 'v'} })
	chunk(1, "a value that claims 2^63 bytes", func([]byte) []byte {
		return []byte{0, 1, 'j', 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1}
	})
	chunk(2, "a root as old as its children", func(b []byte) []byte { b[6] = 0; return b })
	chunk(3, "the second chunk in the place of the first", func([]byte) []byte { return states[3].Stores[0].Chunks[1] })
	return bad
}

// TestSpecExample: the worked example of docs/spec/iavl.md is a vector.
func TestSpecExample(t *testing.T) {
	example := iavlsynctest.LoadVectors(t, vectorsFile).States[1]
	require.Equal(t, "two leaves, one with an empty value", example.Name)
	spectest.Require(t, "iavl.md", example.Stores[0].Chunks[0], example.Manifest)
}
