package avlstar

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// multiproofReceiver is a validator that has the upper tree and the nodes from multiproofs. It
// applies each block with multiproofs of the version before the block, or of older versions.
type multiproofReceiver struct {
	depth int // least number of inner nodes of each path that it has
	rnd   *rand.Rand
	p     *Partial
	kept  []keptMultiproof // of the last blocks
	// number of requests after Apply had failed, and of stale paths into old multiproofs
	asked, stale int
}

type keptMultiproof struct {
	age int
	b   *Multiproof
}

func mustDecodeMultiproof(t require.TestingT, b []byte, err error) *Multiproof {
	require.NoError(t, err)
	multiproof, err := DecodeMultiproof(b)
	require.NoError(t, err)
	return multiproof
}

// start takes the upper tree of v.
func (r *multiproofReceiver) start(t require.TestingT, v *Version) {
	p, err := NewPartial(v.Commitment())
	require.NoError(t, err)
	r.p = p
	b, err := v.Upper(r.depth)
	r.graft(t, mustDecodeMultiproof(t, b, err))
	if r.rnd != nil && r.rnd.IntN(2) == 0 {
		r.p.EnableRetention(Retention{Depth: r.depth, Window: r.rnd.IntN(4), Budget: func() int64 { return int64(r.rnd.IntN(40_000)) }})
	}
}

// shed ends a block.
func (r *multiproofReceiver) shed(t require.TestingT) {
	next, err := r.p.Shed()
	require.NoError(t, err)
	require.Equal(t, r.p.Commitment(), next.Commitment())
	r.p.Release()
	r.p = next
}

// least returns the least depth of a stub, or math.MaxInt if there is none.
func (r *multiproofReceiver) least() int {
	var below func(n ref, s Stub) int
	below = func(n ref, s Stub) int {
		if n.isLeaf() || s == emptyStub {
			return math.MaxInt
		}
		if n == 0 {
			return 0
		}
		i, l := r.p.v.image(n), r.p.v.link(n)
		least := min(below(l.child[left], i.stub(left)), below(l.child[right], i.stub(right)))
		if least < math.MaxInt {
			least++
		}
		return least
	}
	return below(r.p.v.root, r.p.v.top)
}

func (r *multiproofReceiver) graft(t require.TestingT, multiproofs ...*Multiproof) Grafted {
	next, done, err := r.p.Graft(multiproofs...)
	require.NoError(t, err)
	require.Equal(t, r.p.Commitment(), next.Commitment())
	r.p.Release()
	r.p = next
	return done
}

// held returns the hashes of the stubs that it has.
func (r *multiproofReceiver) held() map[Hash]Span {
	held := map[Hash]Span{}
	for s := range r.p.Stubs(nil) {
		held[s.Hash] = Span{}
	}
	return held
}

func wantsOf(block []Change) (wants []Want) {
	for _, c := range block {
		wants = append(wants, Want{Key: c.Key, Deleted: c.Value == nil})
	}
	return wants
}

// apply applies a block; v is the state before it.
func (r *multiproofReceiver) apply(t require.TestingT, v *Version, block []Change) {
	if r.p == nil || r.rnd.IntN(10) == 0 {
		if r.p != nil {
			r.p.Release()
		}
		r.start(t, v)
	}
	var others []*Multiproof // of other blocks
	for _, k := range r.kept {
		others = append(others, k.b)
	}
	r.stale += r.graft(t, others...).Stale
	below := Below{Depth: r.least()} // rotations raise stubs
	if r.rnd.IntN(2) == 0 {
		below = Below{Depth: math.MaxInt, Held: r.held()}
	}
	b, err := v.Multiproof(wantsOf(block), below)
	multiproof := mustDecodeMultiproof(t, b, err)
	r.kept = slices.DeleteFunc(r.kept, func(k keptMultiproof) bool { return k.age > 4 })
	for i := range r.kept {
		r.kept[i].age++
	}
	r.kept = append(r.kept, keptMultiproof{b: multiproof})
	r.graft(t, multiproof)
	for {
		next, err := r.p.Apply(block)
		var missing *MissingNodeError
		if !errors.As(err, &missing) {
			require.NoError(t, err)
			r.p.Release()
			r.p = next
			r.shed(t)
			return
		}
		// A deletion can move the key of a later change into another subtree.
		require.True(t, slices.ContainsFunc(wantsOf(block), isDeleted), "a path was requested: %v", err)
		r.asked++
		r.ask(t, v, missing, block)
	}
}

// ask grafts the nodes that were missing when block was applied; v is the state before it.
func (r *multiproofReceiver) ask(t require.TestingT, v *Version, missing *MissingNodeError, block []Change) {
	b, err := v.Multiproof(missing.Wants(block), Below{Depth: math.MaxInt, Held: missing.Held()})
	done := r.graft(t, mustDecodeMultiproof(t, b, err))
	require.Positive(t, done.Inner+done.Leaves, "requested without success: %v", missing)
}

func (r *multiproofReceiver) require(t require.TestingT, v *Version) {
	require.Equal(t, v.Commitment(), r.p.Commitment())
}

// TestMultiproofIsEnough: a multiproof opens all nodes that its wants need.
func TestMultiproofIsEnough(t *testing.T) {
	rnd := seeds.Rand(t)
	for _, n := range []int{1, 2, 3, 10, 100, 2000} {
		v := randomState(t, rnd, n)
		for range scaled(50) {
			r := multiproofReceiver{depth: rnd.IntN(14), rnd: rnd}
			r.start(t, v)
			block := randomBlock(rnd, 1, 2*n, 0.3, false)
			full := mustApply(t, v, block...)
			r.apply(t, v, block)
			require.Zero(t, r.asked, "nodes that one change of %d leaves touches are missing in a multiproof", n)
			r.require(t, full)
			full.Release()
		}
	}
}

func randomState(t require.TestingT, rnd *rand.Rand, n int) *Version {
	v := mustEmpty(t, 1+rnd.Uint64N(2000))
	return mustApply(t, v, randomBlock(rnd, n, 2*n, 0, false)...)
}

// TestMultiproofsWithinTheWindow: nodes that changed in the last blocks stay. So in a multiproof
// that is not older, the path to a key succeeds if the key was present and still is.
func TestMultiproofsWithinTheWindow(t *testing.T) {
	rnd := seeds.Rand(t)
	for range scaled(10) {
		n, window, depth := 1000, 1+rnd.IntN(8), rnd.IntN(8)
		full := []*Version{randomState(t, rnd, n)} // the last is the latest
		r := multiproofReceiver{depth: depth}
		r.start(t, full[0])
		r.p.EnableRetention(Retention{Depth: depth, Window: window})
		asked, stale := 0, 0
		for range 40 {
			latest := full[len(full)-1]
			block := randomBlock(rnd, 60, 2*n, 0.2, false)
			known := map[string]bool{}
			for wants := range slices.Chunk(wantsOf(block), 20) { // each from another height
				old := full[len(full)-1-rnd.IntN(min(len(full), window+1))]
				for _, w := range wants {
					known[string(w.Key)] = mustHas(t, old, w.Key) && mustHas(t, latest, w.Key)
				}
				b, err := old.Multiproof(wants, Below{})
				stale += r.graft(t, mustDecodeMultiproof(t, b, err)).Stale
			}
			for {
				next, err := r.p.Apply(block)
				var missing *MissingNodeError
				if errors.As(err, &missing) {
					// When a neighbour or the key itself was deleted, an absent key can have moved
					// to another subtree, and its path can end at another leaf.
					require.True(t, missing.Sibling || !known[string(missing.Key)], "a path failed: %v", err)
					asked++
					r.ask(t, latest, missing, block)
					continue
				}
				require.NoError(t, err)
				r.p.Release()
				r.p = next
				r.shed(t)
				break
			}
			full = append(full, mustApply(t, latest, block...))
			r.require(t, full[len(full)-1])
			if len(full) > window+1 {
				full[0].Release()
				full = full[1:]
			}
		}
		t.Logf("window %d, depth %d: %d stubs requested, %d stale paths", window, depth, asked, stale)
	}
}

// TestGraftOnTheLeftEdge: an old multiproof contains keys that were deleted since, before a subtree
// on the tree's left edge. They do not hide that subtree.
func TestGraftOnTheLeftEdge(t *testing.T) {
	put := func(k string) Change { return Change{[]byte(k), []byte("of " + k)} }
	// ((a b) (c d))
	v := mustApply(t, mustEmpty(t, DefaultChunkBytes), put("a"), put("b"), put("c"), put("d"))
	of := func(wants ...Want) *Multiproof {
		b, err := v.Multiproof(wants, Below{})
		return mustDecodeMultiproof(t, b, err)
	}
	p, err := NewPartial(v.Commitment())
	require.NoError(t, err)
	graft := func(b *Multiproof) {
		next, _, err := p.Graft(b)
		require.NoError(t, err)
		p.Release()
		p = next
	}
	graft(of(Want{Key: []byte("a"), Deleted: true}))
	next, err := p.Apply([]Change{{[]byte("a"), nil}})
	require.NoError(t, err)
	p.Release()
	p = next
	var missing *MissingNodeError
	_, _, err = p.Get([]byte("b"))
	require.ErrorAs(t, err, &missing)
	graft(of(Want{Key: []byte("a")}, Want{Key: []byte("b")}))
	value, ok, err := p.Get([]byte("b"))
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "of b", string(value))
	p.Release()
	v.Release()
}

// TestRetention: nodes that were not used recently leave memory. The upper tree and the nodes to be
// kept stay.
func TestRetention(t *testing.T) {
	rnd := seeds.Rand(t)
	v := randomState(t, rnd, 3000)
	p, err := v.Prune(func(Subtree) bool { return false })
	require.NoError(t, err)
	kept := []byte{0x80}
	p.EnableRetention(Retention{Depth: 4, Window: 2, Keep: func(first, after []byte) bool {
		return bytes.Compare(first, kept) <= 0 && (after == nil || bytes.Compare(kept, after) < 0)
	}})
	for i := range 40 {
		next, err := p.Apply([]Change{{[]byte{0x80, 1}, []byte{byte(1 + i)}}})
		require.NoError(t, err)
		p.Release()
		if p, err = next.Shed(); err != nil {
			t.Fatal(err)
		}
		next.Release()
	}
	_, _, err = p.Get(kept)
	require.NoError(t, err)
	r := multiproofReceiver{p: p}
	require.GreaterOrEqual(t, r.least(), 4)
	require.Less(t, p.v.Memory().InnerNodes, uint64(100), "15 above depth 4, and two paths")
}

// TestMultiproofOfRange: the whole range can be read, and nothing else is sent.
func TestMultiproofOfRange(t *testing.T) {
	v := stateOf(t, 50, 40)
	b, err := v.Multiproof([]Want{{Key: []byte("k11"), Range: true, After: []byte("k20")}, {Key: []byte("k60"), Range: true}}, Below{Depth: 2})
	multiproof := mustDecodeMultiproof(t, b, err)
	r := multiproofReceiver{depth: 2}
	r.start(t, v)
	r.graft(t, multiproof)
	var got, want []string
	for i := range 40 {
		key := fmt.Sprintf("k%02d", 2*i)
		if key >= "k10" && key < "k20" || key >= "k60" { // k10: the path to k11
			want = append(want, key)
		}
		if _, ok, err := r.p.Get([]byte(key)); err == nil {
			require.True(t, ok)
			got = append(got, key)
		}
	}
	require.Equal(t, want, got)
}

// TestMultiproofStartsBelow: nodes that the receiver has are not sent.
func TestMultiproofStartsBelow(t *testing.T) {
	v := stateOf(t, 50, 64)
	key := []byte("k31")
	for depth := range 10 {
		b, err := v.Multiproof([]Want{{Key: key}, {Key: key}, {Key: []byte("k30")}}, Below{Depth: depth})
		multiproof := mustDecodeMultiproof(t, b, err)
		s, n, above := Subtree{Stub: v.top}, v.root, 0
		for ; above < depth && n.isInner(); above++ {
			l, r := splitAt(&v.view, s, n)
			side := left
			if s = l; bytes.Compare(key, r.First) >= 0 {
				side, s = right, r
			}
			n = v.link(n).child[side]
		}
		if above < depth {
			require.Empty(t, multiproof.Roots())
			continue
		}
		require.Equal(t, []Stub{s.Stub}, multiproof.Roots(), "depth %d", depth)
		again, err := v.Multiproof([]Want{{Key: key}}, Below{Depth: math.MaxInt, Held: map[Hash]Span{s.Hash: {}}})
		require.NoError(t, err)
		require.Equal(t, b, again)
	}
}

func TestUpperTree(t *testing.T) {
	v := stateOf(t, 50, 40)
	for depth := range 9 {
		r := multiproofReceiver{depth: depth}
		r.start(t, v)
		var above func(n ref, depth int)
		above = func(n ref, depth int) {
			if depth == 0 || n.isLeaf() {
				require.Zero(t, n)
				return
			}
			if !n.isInner() {
				require.Fail(t, "a stub above the depth")
			}
			for _, c := range r.p.v.link(n).child {
				if depth > 1 || c != 0 {
					above(c, depth-1)
				}
			}
		}
		if depth < int(v.top.Height)-1 {
			above(r.p.v.root, depth)
		}
		require.Equal(t, v.AppHash(), r.p.AppHash())
	}
}

// TestDamagedMultiproof changes every byte of a multiproof: grafted nodes are never wrong.
func TestDamagedMultiproof(t *testing.T) {
	v := stateOf(t, 50, 40)
	block := []Change{{[]byte("k07"), []byte("x")}, {Key: []byte("k20")}, {[]byte("k44"), []byte("y")}}
	full := mustApply(t, v, block...)
	b, err := v.Multiproof(wantsOf(block), Below{Depth: 2})
	require.NoError(t, err)
	refused, useless := 0, 0
	for i := range b {
		for _, flip := range []byte{1, 0x80, 0xff} {
			damaged := bytes.Clone(b)
			damaged[i] ^= flip
			multiproof, err := DecodeMultiproof(damaged)
			if err != nil {
				require.ErrorIs(t, err, ErrInvalidMultiproof)
				refused++
				continue
			}
			r := multiproofReceiver{depth: 2}
			r.start(t, v)
			r.graft(t, multiproof)
			next, err := r.p.Apply(block)
			if err != nil {
				require.ErrorAs(t, err, new(*MissingNodeError))
				useless++
				continue
			}
			require.Equal(t, full.Commitment(), next.Commitment(), "byte %d", i)
			t.Errorf("byte %d can be changed to %d: a second encoding", i, damaged[i])
		}
	}
	require.Positive(t, refused)
	require.Positive(t, useless)
	for n := range b[1:] {
		_, err := DecodeMultiproof(b[:n+1])
		if err == nil {
			continue // whole trees
		}
		require.ErrorIs(t, err, ErrInvalidMultiproof)
	}
}

// TestMultiproofIsLimited: a multiproof has at most the allowed bytes, and one item more.
func TestMultiproofIsLimited(t *testing.T) {
	v := stateOf(t, 50, 40)
	whole, err := v.Multiproof([]Want{{Range: true}}, Below{})
	require.NoError(t, err)
	again, err := v.Multiproof([]Want{{Range: true}}, Below{MaxBytes: len(whole)})
	require.NoError(t, err)
	require.Equal(t, whole, again)
	_, err = v.Multiproof([]Want{{Range: true}}, Below{MaxBytes: len(whole) / 2})
	require.ErrorIs(t, err, ErrMultiproofTooLarge)
}

// TestRangesAreJoined: overlapping ranges are joined, in whatever order they are, and open the same
// nodes as each of them.
func TestRangesAreJoined(t *testing.T) {
	v := stateOf(t, 50, 40)
	want, err := v.Multiproof([]Want{{Key: []byte("k10"), Range: true, Deleted: true}}, Below{})
	require.NoError(t, err)
	var wants []Want
	for i := range 30 {
		wants = append(wants, Want{Key: fmt.Appendf(nil, "k%02d", 10+i), Range: true, After: fmt.Appendf(nil, "k%02d", 12+i)})
	}
	wants = append(wants, Want{Key: []byte("k30"), Range: true, Deleted: true}, Want{Key: []byte("k20")})
	resolved, err := v.resolveWants(wants, false)
	require.NoError(t, err)
	require.Equal(t, []Want{{Key: []byte("k10"), Range: true, Deleted: true}, {Key: []byte("k20")}}, resolved)
	got, err := v.Multiproof(wants, Below{})
	require.NoError(t, err)
	require.Equal(t, want, got)
}
