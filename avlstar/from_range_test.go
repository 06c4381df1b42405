package avlstar

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// TestFromRangeOfManyRuns builds replicas of ranges that begin and end anywhere in the runs that
// are built at a time, and replays a block in each.
func TestFromRangeOfManyRuns(t *testing.T) {
	rnd := seeds.Rand(t)
	key := func(i int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(i)) }
	for _, n := range []int{1, 2, 5000, max(9_000, scaled(30_000))} {
		v := treeOf(t, n)
		block := uniqueKeys([]Change{{key(n), []byte("1")}, {key(n / 2), []byte("2")}, {Key: key(n / 3)}})
		next := mustApply(t, v, block...)
		ranges := []KeyRange{{}, {First: key(0)}, {First: key(1)}, {After: key(n - 1)}, {First: key(n)}, {First: key(n / 2), After: key(n/2 + 1)}}
		for range 6 {
			edges := []int{rnd.IntN(n + 1), rnd.IntN(n + 1)}
			slices.Sort(edges)
			ranges = append(ranges, KeyRange{First: key(edges[0]), After: key(edges[1] + 1)})
		}
		for i, r := range ranges {
			if r.Check() != nil { // no key is below the first
				continue
			}
			t.Run(fmt.Sprintf("%d leaves, range %d", n, i), func(t *testing.T) {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1 + 7*(i%2)))
				p := mustReplica(t, v, r)
				requireMemory(t, p)
				require.Equal(t, leavesOf(t, v, r), mustReplicaLeaves(t, p, r))
				after, err := p.Replay(r, mustUpdate(t, next, v, r, block))
				require.NoError(t, err)
				require.Equal(t, next.AppHash(), after.AppHash())
				p.Release()
				requireMemory(t, after)
				require.Equal(t, leavesOf(t, next, r), mustReplicaLeaves(t, after, r))
			})
		}
	}
}

func TestFromRangeOfOtherLeaves(t *testing.T) {
	v := stateOf(t, 50, 40)
	r := KeyRange{First: []byte("k21"), After: []byte("k50")}
	boundary, err := v.Boundary(r)
	right := mustDecodeMultiproof(t, boundary, err)
	boundary, err = v.Boundary(KeyRange{First: []byte("k30")})
	elsewhere := mustDecodeMultiproof(t, boundary, err)
	boundary, err = mustApply(t, v, Change{[]byte("k01"), []byte("1")}).Boundary(r)
	newer := mustDecodeMultiproof(t, boundary, err)
	want := leavesOf(t, v, r)
	c := v.Commitment()
	for name, given := range map[string]func() (Commitment, *Multiproof, []Leaf){
		"a leaf less": func() (Commitment, *Multiproof, []Leaf) { return c, right, want[1:] },
		"no leaves":   func() (Commitment, *Multiproof, []Leaf) { return c, right, nil },
		"a leaf outside": func() (Commitment, *Multiproof, []Leaf) {
			return c, right, append(want, Leaf{Key: r.After, Value: r.After})
		},
		"another value":                       func() (Commitment, *Multiproof, []Leaf) { want[3].Value = []byte("lie"); return c, right, want },
		"another height":                      func() (Commitment, *Multiproof, []Leaf) { want[3].Height ^= 1; return c, right, want },
		"a great height":                      func() (Commitment, *Multiproof, []Leaf) { want[3].Height = 200; return c, right, want },
		"a key twice":                         func() (Commitment, *Multiproof, []Leaf) { return c, right, slices.Insert(want, 4, want[4]) },
		"no key":                              func() (Commitment, *Multiproof, []Leaf) { return c, right, append(want, Leaf{Key: []byte("k49")}) },
		"no boundary proof":                   func() (Commitment, *Multiproof, []Leaf) { return c, nil, want },
		"the boundary proof of another range": func() (Commitment, *Multiproof, []Leaf) { return c, elsewhere, want },
		"a newer boundary proof":              func() (Commitment, *Multiproof, []Leaf) { return c, newer, want },
		"another root": func() (Commitment, *Multiproof, []Leaf) {
			other := c
			other.Root.Hash[0]++
			return other, right, want
		},
		"no chunks": func() (Commitment, *Multiproof, []Leaf) { return Commitment{ChunkBytes: 50, Root: c.Root}, right, want },
		"no B":      func() (Commitment, *Multiproof, []Leaf) { return Commitment{Chunks: 1, Root: c.Root}, right, want },
		"empty or not": func() (Commitment, *Multiproof, []Leaf) {
			return Commitment{ChunkBytes: 50, Root: emptyStub}, nil, want
		},
	} {
		t.Run(name, func(t *testing.T) {
			want = leavesOf(t, v, r)
			c, boundary, leaves := given()
			_, err := FromRange(c, r, boundary, withoutError(slices.Values(leaves)))
			require.ErrorIs(t, err, ErrOtherState)
		})
	}
	broken := errors.New("broken disk")
	want = leavesOf(t, v, r)
	_, err = FromRange(c, r, right, func(yield func(Leaf, error) bool) { _ = yield(want[0], nil) && yield(Leaf{}, broken) })
	require.ErrorIs(t, err, broken)
	require.NotErrorIs(t, err, ErrOtherState)
	_, err = FromRange(c, KeyRange{First: []byte("k"), After: []byte("k")}, right, withoutError(slices.Values(want)))
	require.ErrorContains(t, err, "no key is in the range")
}

// TestFromRangeOfNothing: the tree is empty, or its first keys arrive.
func TestFromRangeOfNothing(t *testing.T) {
	v := mustEmpty(t, 50)
	ranges := []KeyRange{{After: []byte("k")}, {First: []byte("k"), After: []byte("m")}, {First: []byte("m")}}
	block := []Change{{[]byte("k"), []byte("1")}, {[]byte("l"), []byte("2")}}
	next := mustApply(t, v, block...)
	back := []Change{{Key: []byte("k")}, {Key: []byte("l")}}
	empty := mustApply(t, next, back...)
	for _, r := range ranges {
		p := mustReplica(t, v, r)
		after, err := p.Replay(r, mustUpdate(t, next, v, r, block))
		require.NoError(t, err)
		require.Equal(t, next.AppHash(), after.AppHash())
		require.Equal(t, leavesOf(t, next, r), mustReplicaLeaves(t, after, r))
		end, err := after.Replay(r, mustUpdate(t, empty, next, r, back))
		require.NoError(t, err)
		require.Equal(t, v.AppHash(), end.AppHash())
		p.Release()
		after.Release()
		requireMemory(t, end)
	}
}
