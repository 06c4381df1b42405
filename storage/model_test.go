package storage

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar/record"
)

// model is the reference: a state as plain maps. A model in a history is immutable.
type model struct {
	meta    Meta
	leaves  map[string]string
	heights map[string]uint8
}

func (m model) clone() model {
	return model{m.meta, maps.Clone(m.leaves), maps.Clone(m.heights)}
}

func emptyModel() model {
	return model{leaves: map[string]string{}, heights: map[string]uint8{}}
}

func (m model) apply(b Block) model {
	n := m.clone()
	n.meta = b.Meta
	for _, k := range b.Deletes {
		delete(n.leaves, string(k))
		delete(n.heights, string(k))
	}
	for _, l := range b.Puts {
		n.leaves[string(l.Key)] = string(l.Value)
	}
	heights := ownerOf(&b).heights
	if heights == nil {
		return n
	}
	for key, height := range heights {
		if height == 0 {
			delete(n.heights, string(key))
		} else {
			n.heights[string(key)] = height
		}
	}
	return n
}

// list returns the leaves as Scan yields them.
func (m model) list() []record.Leaf {
	var leaves []record.Leaf
	for _, k := range slices.Sorted(maps.Keys(m.leaves)) {
		leaves = append(leaves, record.Leaf{Key: []byte(k), Value: []byte(m.leaves[k]), Height: m.heights[k]})
	}
	return leaves
}

// records returns the leaves with keys in [first, after) as Page returns them.
func (m model) records(first, after []byte) []byte {
	var b []byte
	for _, l := range m.list() {
		if bytes.Compare(l.Key, first) >= 0 && (after == nil || bytes.Compare(l.Key, after) < 0) {
			b = appendRecord(b, l)
		}
	}
	return b
}

func scanAll(t *testing.T, s *Zone) []record.Leaf {
	t.Helper()
	var leaves []record.Leaf
	for leaf, err := range s.Scan() {
		require.NoError(t, err)
		leaves = append(leaves, record.Leaf{Key: append([]byte{}, leaf.Key...), Value: append([]byte{}, leaf.Value...), Height: leaf.Height})
	}
	return leaves
}

// read returns the contents of s as a model.
func read(t *testing.T, s *Zone) model {
	t.Helper()
	m := emptyModel()
	m.meta, _ = s.Meta()
	for _, l := range scanAll(t, s) {
		m.leaves[string(l.Key)] = string(l.Value)
		if l.Height > 0 {
			m.heights[string(l.Key)] = l.Height
		}
	}
	return m
}

func (m model) requireIn(t *testing.T, s *Zone) {
	t.Helper()
	meta, ok := s.Meta()
	require.Equal(t, m.meta.Height > 0, ok)
	require.Equal(t, m.meta, meta)
	require.Equal(t, m.meta.Height, s.Safe())
	require.Equal(t, m.list(), scanAll(t, s))
}

func testMeta(height int64) Meta {
	return Meta{Height: height, AppHash: []byte(fmt.Sprintf("app hash after block %11d", height)), ChunkBytes: 1 << 20, ChainID: "test"}
}

// randomBlock changes some of m's keys, drawn from a small set, so that they are put, deleted and
// put again.
func randomBlock(rng *rand.Rand, m model, height int64) Block {
	b := Block{Meta: testMeta(height)}
	var heights []keyHeight
	touched := map[string]bool{}
	for range rng.IntN(20) {
		key := fmt.Sprintf("%0*d", 1+rng.IntN(3), rng.IntN(50))
		if touched[key] {
			continue
		}
		touched[key] = true
		_, there := m.leaves[key]
		switch rng.IntN(4) {
		case 0:
			b.Deletes = append(b.Deletes, []byte(key))
		case 1:
			if there {
				heights = append(heights, keyHeight{[]byte(key), uint8(rng.IntN(5))})
			}
		default:
			value := make([]byte, 1+rng.IntN(3000))
			for i := range value {
				value[i] = byte(rng.Uint32())
			}
			b.Puts = append(b.Puts, record.Leaf{Key: []byte(key), Value: value})
			if rng.IntN(2) == 0 {
				heights = append(heights, keyHeight{[]byte(key), uint8(rng.IntN(5))})
			}
		}
	}
	if len(heights) > 0 {
		ownerOf(&b).heights = each(heights...)
	}
	return b
}

// randomHistory returns blocks, and the states before the first and after each.
func randomHistory(rng *rand.Rand, blocks int64) ([]Block, []model) {
	history, all := []model{emptyModel()}, []Block(nil)
	for height := int64(1); height <= blocks; height++ {
		b := randomBlock(rng, history[height-1], height)
		all = append(all, b)
		history = append(history, history[height-1].apply(b))
	}
	return all, history
}

// newRNG is for a test that reports its seed, in its name or in its assertions.
func newRNG(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }
