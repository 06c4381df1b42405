package avlstar

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// treeOf returns a tree of n leaves that were put in ascending order.
func treeOf(t require.TestingT, n int) *Version {
	block := make([]Change, n)
	for i := range block {
		block[i] = Change{binary.BigEndian.AppendUint32(nil, uint32(i)), fmt.Append(nil, i)}
	}
	return advance(t, mustEmpty(t, 4000), block...)
}

// requireEqual does what requireSame does, for large trees: got must have the nodes of want.
func requireEqual(t require.TestingT, want, got *Version) {
	require.Equal(t, want.Commitment(), got.Commitment())
	require.Equal(t, want.Len(), got.Len())
	require.True(t, bytes.Equal(want.Manifest().Encode(), got.Manifest().Encode()), "manifest")
	var same func(a, b ref) bool
	same = func(a, b ref) bool {
		switch {
		case a == 0 || b == 0:
			return a == b
		case a.isLeaf() && b.isLeaf():
			return bytes.Equal(want.body(a), got.body(b))
		case a.isLeaf() || b.isLeaf():
			return false
		}
		l, i := got.link(b), got.image(b)
		key := want.keyOf(a)
		return bytes.Equal(want.image(a).hashed(), i.hashed()) && bytes.Equal(key, got.keyOf(b)) && l.prefix == prefixOf(key) &&
			i.leaf() == got.end(l.child[right], left) &&
			same(want.link(a).child[left], l.child[left]) && same(want.link(a).child[right], l.child[right])
	}
	require.True(t, same(want.root, got.root), "nodes")
}

// TestLoadSizes rebuilds trees whose size is near that of a run, and applies changes to them.
func TestLoadSizes(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4095, 4096, 4097, 4098, 8193, max(20_000, scaled(50_000))} {
		for _, procs := range []int{1, 8} {
			t.Run(fmt.Sprintf("%d leaves, %d procs", n, procs), func(t *testing.T) {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
				v := treeOf(t, n)
				if n < 10_000 {
					requireInvariants(t, v)
				}
				for name, reload := range map[string]func() *Version{
					"leaves": func() *Version { return fromLeaves(t, nil, v) },
					"chunks": func() *Version { return fromChunks(t, nil, v) },
				} {
					again := reload()
					requireEqual(t, v, again)
					require.Equal(t, v.Memory().Leaves, again.Memory().Leaves, name)
					require.Equal(t, uint64(n-1), again.Memory().InnerNodes, name)
					again = advance(t, again, Change{[]byte("new"), []byte("1")}, Change{Key: []byte{0, 0, 0, 0}})
					again = advance(t, again, Change{Key: []byte("new")}, Change{[]byte{0, 0, 0, 0}, []byte("0")})
					value, ok := mustGet(t, again, []byte{0, 0, 0, 0})
					require.True(t, ok)
					require.Equal(t, "0", string(value))
					requireOnlyLatest(t, again)
				}
			})
		}
	}
}

// TestLoadOfOtherShapes reloads trees whose subtrees of height 12 have as few as 377 leaves, not
// 4,096.
func TestLoadOfOtherShapes(t *testing.T) {
	rnd := seeds.Rand(t)
	v := mustEmpty(t, 10_000)
	for i := range 12 {
		v = advance(t, v, randomBlock(rnd, scaled(8000), 60_000, []float64{0, 0.3, 0.9}[i%3], false)...)
		requireEqual(t, v, fromLeaves(t, nil, v))
		requireEqual(t, v, fromChunks(t, nil, v))
	}
}

// TestLoadRefuses: every error in a long stream is found and has the same text, whatever the number
// of cores.
func TestLoadRefuses(t *testing.T) {
	v := treeOf(t, 20_000)
	good := slices.Collect(mustLeaves(t, v))
	bounds := []int{} // where runs begin
	for i, l := range good {
		if l.Height > runHeight {
			bounds = append(bounds, i)
		}
	}
	require.GreaterOrEqual(t, len(bounds), 3)
	broken := errors.New("broken disk")
	for name, c := range map[string]struct {
		damage func(leaves []Leaf)
		fail   int // the leaf at which the stream fails
		want   string
	}{
		"no boundary": {
			damage: func(leaves []Leaf) { leaves[bounds[0]].Height = 12 },
			want:   "from leaf 0 on: record 4096: inner node of height 12",
		},
		"no height": {
			damage: func(leaves []Leaf) {
				for i := range leaves {
					leaves[i].Height = min(leaves[i].Height, 5)
				}
			},
			want: "from leaf 0 on: ",
		},
		"two runs": {
			damage: func(leaves []Leaf) { leaves[bounds[1]+100].Height, leaves[bounds[2]+5].Height = 9, 9 },
			want:   fmt.Sprintf("from leaf %d on: ", bounds[1]),
		},
		"a run and the stream": {
			damage: func(leaves []Leaf) { leaves[77].Height = 9 }, fail: bounds[2] + 9,
			want: "from leaf 0 on: ",
		},
		"order in a run": {
			damage: func(leaves []Leaf) { leaves[300].Key = leaves[299].Key },
			want:   "from leaf 0 on: record 300: key 0000012b does not ascend",
		},
		"order between runs": {
			damage: func(leaves []Leaf) { leaves[bounds[0]].Key = leaves[bounds[0]-1].Key },
			want:   fmt.Sprintf("leaf %d: key 00000fff does not ascend", bounds[0]),
		},
		"above the runs": {
			damage: func(leaves []Leaf) { leaves[bounds[1]].Height++ },
			want:   "inner node",
		},
		"run of another height": {
			damage: func(leaves []Leaf) { leaves[bounds[0]+1].Height = 200 },
			want:   fmt.Sprintf("leaf %d: inner node out of balance", bounds[0]+1),
		},
		"the stream": {fail: bounds[2] + 9, want: fmt.Sprintf("leaf %d: broken disk", bounds[2]+9)},
		"its end":    {fail: len(good) - 1, want: fmt.Sprintf("leaf %d: broken disk", len(good)-1)},
	} {
		for _, procs := range []int{1, 2, 8} {
			t.Run(fmt.Sprintf("%s, %d procs", name, procs), func(t *testing.T) {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
				leaves := slices.Clone(good)
				if c.damage != nil {
					c.damage(leaves)
				}
				for range 3 {
					_, err := FromLeaves(4000, func(yield func(Leaf, error) bool) {
						for i, l := range leaves {
							if c.fail == i && i > 0 {
								yield(Leaf{}, broken)
								return
							}
							if !yield(l, nil) {
								return
							}
						}
					})
					require.ErrorContains(t, err, "avlstar: tree from leaves: "+c.want)
				}
			})
		}
	}
}
