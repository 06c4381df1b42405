package avlstar

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// pruneTo returns a partial tree with the nodes on the paths to some keys.
func pruneTo(t require.TestingT, v *Version, keys ...[]byte) *Partial {
	keys = slices.SortedFunc(slices.Values(keys), bytes.Compare)
	p, err := v.Prune(func(s Subtree) bool { return !touches(s, keys) })
	require.NoError(t, err)
	return p
}

func requireMissing(t require.TestingT, err error, node Stub, key []byte) {
	var missing *MissingNodeError
	require.ErrorAs(t, err, &missing)
	require.Equal(t, node, missing.Node)
	require.Equal(t, key, missing.Key)
}

func requireLen(t require.TestingT, want uint64, p *Partial) {
	n, ok := p.Len()
	require.True(t, ok)
	require.Equal(t, want, n)
}

// TestRotationNeedsStub deletes a key where the other side, a stub, must be rotated.
func TestRotationNeedsStub(t *testing.T) {
	v := mustEmpty(t, 10)
	for _, key := range []string{"a", "b", "c", "d", "e"} {
		v = advance(t, v, Change{[]byte(key), []byte("1")})
	}
	require.Equal(t, []uint8{0, 1, 3, 2, 1}, heightsOf(t, v)) // a b | c (d e)
	a, d := []byte("a"), []byte("d")
	p := pruneTo(t, v, a, []byte("b"))
	before := p.v.Memory()
	stub := v.child(v.root, right).Stub
	// The failing change is the last one, or an earlier one.
	for _, block := range [][]Change{{{Key: a}}, {{Key: a}, {Key: d}}} {
		_, err := p.Apply(block)
		requireMissing(t, err, stub, a)
		require.Equal(t, before, p.v.Memory())
	}
	_, err := p.Apply([]Change{{a, []byte("2")}})
	require.NoError(t, err)
}

func heightsOf(t *testing.T, v *Version) (heights []uint8) {
	for l := range mustLeaves(t, v) {
		heights = append(heights, l.Height)
	}
	return heights
}

func TestPruneEverything(t *testing.T) {
	v := stateOf(t, 50, 20)
	p, err := v.Prune(func(Subtree) bool { return true })
	require.NoError(t, err)
	key := []byte("k04")
	require.Equal(t, v.Commitment(), p.Commitment())
	require.Equal(t, v.AppHash(), p.AppHash())
	requireLen(t, v.Len(), p)
	_, _, err = p.Get(key)
	requireMissing(t, err, v.Root(), key)
	_, err = p.Prove(key)
	requireMissing(t, err, v.Root(), key)
	_, err = p.Apply([]Change{{Key: key}})
	requireMissing(t, err, v.Root(), key)
	same, err := p.Apply(nil)
	require.NoError(t, err)
	require.Equal(t, v.Commitment(), same.Commitment())
	again, err := p.Prune(func(Subtree) bool { t.Error("asked below a stub"); return false })
	require.NoError(t, err)
	require.Equal(t, v.Commitment(), again.Commitment())
}

func TestPruneNothing(t *testing.T) {
	for _, n := range []int{0, 1, 2, 50} {
		v := stateOf(t, 50, n)
		p, err := v.Prune(func(Subtree) bool { return false })
		require.NoError(t, err)
		require.Equal(t, v.Memory().Leaves, p.v.Memory().Leaves)
		requireSame(t, v, p.v)
		p, err = p.Apply([]Change{{[]byte("k07"), []byte("1")}, {Key: []byte("k04")}})
		require.NoError(t, err)
		requireSame(t, mustApply(t, v, Change{[]byte("k07"), []byte("1")}, Change{Key: []byte("k04")}), p.v)
	}
}

// TestAbsenceNeedsNeighbour: a proof of absence needs both neighbours, one of which may be in
// another stub.
func TestAbsenceNeedsNeighbour(t *testing.T) {
	v := stateOf(t, 50, 20)
	missing := 0
	for i := range 20 {
		key := []byte{'k', byte('0' + 2*i/10), byte('0' + 2*i%10)}
		gap := append(bytes.Clone(key), '!')
		p := pruneTo(t, v, key)
		_, ok, err := p.Get(gap)
		require.NoError(t, err)
		require.False(t, ok)
		got, err := p.Prove(gap)
		if i == 19 {
			require.NoError(t, err, "above all keys one neighbour is enough")
		}
		if err != nil {
			missing++
			require.ErrorAs(t, err, new(*MissingNodeError))
			next := []byte{'k', byte('0' + (2*i+2)/10), byte('0' + (2*i+2)%10)}
			p = pruneTo(t, v, key, next)
			got, err = p.Prove(gap)
			require.NoError(t, err)
		}
		require.NoError(t, VerifyProof(v.AppHash(), gap, nil, got))
	}
	require.NotZero(t, missing)
}

// TestRandomPruning compares partial trees, and partial trees of these, with the full one. Results
// are equal, or an error names a stub on the path to the key; with the content of that stub, the
// operation gets further.
func TestRandomPruning(t *testing.T) {
	rnd := seeds.Rand(t)
	for range scaled(30) {
		v := mustEmpty(t, 1+rnd.Uint64N(2000))
		keys := 10 << rnd.IntN(6)
		for range 3 {
			v = advance(t, v, randomBlock(rnd, 1+rnd.IntN(2*keys), keys, 0.2, false)...)
		}
		g := newPruned(v, rnd)
		for range 20 {
			key := randomKey(rnd, keys+keys/10)
			want, wantOK := mustGet(t, v, key)
			var got []byte
			var ok bool
			g.until(t, func(p *Partial) (err error) { got, ok, err = p.Get(key); return err }, func(asked []byte) bool { return bytes.Equal(asked, key) })
			require.Equal(t, wantOK, ok)
			require.Equal(t, want, got)

			wantProof, err := v.Prove(key)
			require.NoError(t, err)
			var proof Proof
			g.until(t, func(p *Partial) (err error) { proof, err = p.Prove(key); return err }, func(asked []byte) bool { return bytes.Equal(asked, key) })
			require.Equal(t, wantProof, proof)
			g.forget(rnd)
		}
		for range 10 { // each block is applied to the same version
			block := randomBlock(rnd, rnd.IntN(1<<rnd.IntN(7)), keys, rnd.Float64(), false)
			want := mustApply(t, v, block...)
			var next *Partial
			g.until(t, func(p *Partial) (err error) { next, err = p.Apply(block); return err }, func(asked []byte) bool {
				return slices.ContainsFunc(block, func(c Change) bool { return bytes.Equal(c.Key, asked) })
			})
			require.Equal(t, want.Commitment(), next.Commitment())
			requireLen(t, want.Len(), next)
			for _, c := range block { // the changed nodes are present now
				got, ok, err := next.Get(c.Key)
				if err == nil {
					require.Equal(t, c.Value != nil, ok)
					require.Equal(t, c.Value, got)
				} else {
					require.Nil(t, c.Value)
				}
			}
			want.Release()
			next.Release()
			g.forget(rnd)
		}
	}
}

// pruned makes partial trees of v in which fewer and fewer nodes are missing.
type pruned struct {
	v    *Version
	have func(Stub) bool
	more map[Stub]bool
	deep bool // a partial tree of a partial tree
}

func newPruned(v *Version, rnd *rand.Rand) *pruned {
	g := &pruned{v: v}
	g.forget(rnd)
	return g
}

// forget chooses again which nodes are present.
func (g *pruned) forget(rnd *rand.Rand) {
	salt, odds := byte(rnd.Uint32()), []byte{0, 10, 60, 128, 255}[rnd.IntN(5)]
	g.have = func(s Stub) bool { return s.Hash[0]^salt >= odds }
	g.more, g.deep = map[Stub]bool{}, rnd.IntN(2) == 0
}

func (g *pruned) tree(t require.TestingT) *Partial {
	if !g.deep {
		p, err := g.v.Prune(func(s Subtree) bool { return !g.have(s.Stub) && !g.more[s.Stub] })
		require.NoError(t, err)
		return p
	}
	half := func(s Stub) bool { return s.Hash[1]&1 == 0 }
	p, err := g.v.Prune(func(s Subtree) bool { return !g.have(s.Stub) && !g.more[s.Stub] && half(s.Stub) })
	require.NoError(t, err)
	again, err := p.Prune(func(s Subtree) bool { return !g.have(s.Stub) && !g.more[s.Stub] })
	require.NoError(t, err)
	p.Release()
	return again
}

// until repeats an operation, and adds the nodes that its error names as missing, until it
// succeeds.
func (g *pruned) until(t require.TestingT, do func(*Partial) error, asked func([]byte) bool) {
	for {
		p := g.tree(t)
		before, leaves := p.v.Memory(), stubsAndLeaves(p)
		err := do(p)
		if err == nil {
			p.Release()
			return
		}
		var missing *MissingNodeError
		require.ErrorAs(t, err, &missing)
		require.True(t, asked(missing.Key), "another key: %v", err)
		require.True(t, slices.Contains(leaves, missing.Node), "no stub of this tree: %v", err)
		require.False(t, g.more[missing.Node], "it is there: %v", err)
		require.Equal(t, before, p.v.Memory())
		require.Equal(t, leaves, stubsAndLeaves(p))
		var again *MissingNodeError
		require.True(t, errors.As(do(p), &again))
		require.Equal(t, missing, again, "a failed operation leaves everything as it was")
		g.more[missing.Node] = true
		p.Release()
	}
}

// stubsAndLeaves returns the stubs and leaves of p in key order.
func stubsAndLeaves(p *Partial) (ends []Stub) {
	var walk func(s sub)
	walk = func(s sub) {
		if !s.n.isInner() {
			ends = append(ends, s.Stub)
			return
		}
		walk(p.v.child(s.n, left))
		walk(p.v.child(s.n, right))
	}
	walk(sub{p.v.top, p.v.root})
	return ends
}
