package iavlsynctest

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
)

// Hex is a byte string that JSON holds in lower-case hexadecimal. null and "" are distinct.
type Hex []byte

// MarshalText implements encoding.TextMarshaler.
func (h Hex) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(h)), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (h *Hex) UnmarshalText(text []byte) error {
	b := make([]byte, hex.DecodedLen(len(text)))
	_, err := hex.Decode(b, text)
	*h = b
	return err
}

// Vectors is the file of test vectors for other implementations (docs/spec/iavl.md#vectors).
type Vectors struct {
	States   []VectorState   `json:"states"`
	Requests []VectorRequest `json:"requests"`
	Invalid  []VectorInvalid `json:"invalid"`
}

// VectorState is a state with its manifest, chunks and hashes.
type VectorState struct {
	Name string `json:"name"`
	// Blocks are applied at heights 1, 2, and so on. Blocks that are missing up to Height are
	// empty.
	Blocks  []map[string][]VectorOp `json:"blocks"`
	Format  uint32                  `json:"format"`
	Height  int64                   `json:"height"`
	AppHash Hex                     `json:"app_hash"`
	Stores  []VectorStore           `json:"stores"`
	// Manifest is the encoded manifest.
	Manifest Hex `json:"manifest"`
}

// VectorOp sets a key, or removes it if the value is null.
type VectorOp struct {
	Key   Hex  `json:"key"`
	Value *Hex `json:"value"`
}

// VectorStore is a store with its chunks in order.
type VectorStore struct {
	Name   string `json:"name"`
	Root   Hex    `json:"root"`
	Chunks []Hex  `json:"chunks"`
	// Halves is the answer with the halves of the store's root, as if its chunk were too large. It
	// is null if the store has fewer than two leaves.
	Halves Hex `json:"halves,omitempty"`
}

// VectorRequest is a request with its encoding.
type VectorRequest struct {
	Height  int64  `json:"height"`
	Store   string `json:"store"`
	First   int64  `json:"first"`
	Leaves  int64  `json:"leaves"`
	Offset  int64  `json:"offset"`
	Encoded Hex    `json:"encoded"`
}

// VectorInvalid is a manifest or a chunk that a receiver must reject.
type VectorInvalid struct {
	Name string `json:"name"`
	// State is the name of the state that Bytes claims to belong to.
	State string `json:"state"`
	// Chunk is the number of the chunk that Bytes replaces, counted over all stores; −1: the
	// manifest.
	Chunk int `json:"chunk"`
	Bytes Hex `json:"bytes"`
}

// LoadVectors reads a file of vectors.
func LoadVectors(t testing.TB, path string) (v Vectors) {
	t.Helper()
	b, err := os.ReadFile(path) //nolint:gosec // a test's file
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &v))
	require.NotEmpty(t, v.States)
	return v
}

// eachBlock calls fn with the operations of each height up to Height.
func (v *VectorState) eachBlock(fn func(height int64, block map[string][]Op)) {
	stores := map[string][]Op{}
	for h := int64(1); h <= v.Height; h++ {
		block := map[string][]Op{}
		for name := range stores {
			block[name] = []Op{}
		}
		if h <= int64(len(v.Blocks)) {
			for name, ops := range v.Blocks[h-1] {
				stores[name], block[name] = nil, []Op{}
				for _, op := range ops {
					o := Op{Key: op.Key}
					if op.Value != nil {
						o.Value = append([]byte{}, *op.Value...)
					}
					block[name] = append(block[name], o)
				}
			}
		}
		fn(h, block)
	}
}

// State applies the blocks to naive trees.
func (v *VectorState) State() State {
	trees := map[string]*Tree{}
	v.eachBlock(func(height int64, block map[string][]Op) {
		for name, ops := range block {
			if trees[name] == nil {
				trees[name] = &Tree{}
			}
			trees[name].Apply(ops)
			trees[name].SaveAs(height)
		}
	})
	s := State{}
	for name, tree := range trees {
		s[name] = tree.Root
	}
	return s
}

// check applies the blocks to a real chain.
func (v *VectorState) check(t *testing.T, chain Chain) {
	v.eachBlock(func(_ int64, block map[string][]Op) { chain.Commit(t, block) })
	for _, s := range v.Stores {
		require.Equal(t, []byte(s.Root), chain.Root(t, s.Name))
	}
	if app := chain.AppHash(t); app != nil {
		require.Equal(t, []byte(v.AppHash), app)
	}
	verifyExported(t, chain, iavlsync.Format(v.Format), v.Height, v.State())
}
