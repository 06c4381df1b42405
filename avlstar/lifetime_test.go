package avlstar

import (
	"fmt"
	"maps"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// TestLifetimes keeps versions for random times and releases them in random orders. The versions
// that are kept do not change; the others are freed.
func TestLifetimes(t *testing.T) {
	rnd := seeds.Rand(t)
	for name, policy := range map[string]pinPolicy{
		"at once": releaseAtOnce, "in order": pinSome, "in any order": pinShuffled, "forks": pinForks, "at the end": pinAll,
	} {
		t.Run(name, func(t *testing.T) {
			p := &pins{policy: policy, rnd: rnd}
			versions := scaled(400)
			if policy == pinAll {
				versions = scaled(60)
			}
			v, content := mustEmpty(t, 3000), model{}
			for i := range versions {
				var block []Change
				if i%97 == 60 { // down to nothing
					for key := range content {
						block = append(block, Change{Key: []byte(key)})
					}
				} else {
					block = randomBlock(rnd, rnd.IntN(1<<rnd.IntN(10)), 1500, []float64{0.1, 0.3, 0.7}[i/30%3], true)
				}
				before := maps.Clone(content)
				held := len(p.held)
				next := p.advanceChecked(t, v, block, before)
				content.apply(block)
				v = next
				require.Equal(t, uint64(len(content)), v.Len())
				require.LessOrEqual(t, v.Memory().Versions, held+3)
			}
			content.requireContent(t, v)
			for len(p.held) > 0 {
				p.release(t)
				if rnd.IntN(3) == 0 {
					block := randomBlock(rnd, 50, 1500, 0.3, true)
					content.apply(block)
					v = advance(t, v, block...)
				}
			}
			v = advance(t, v, Change{[]byte("last"), []byte("one more")}, Change{Key: []byte("5")})
			content.apply([]Change{{[]byte("last"), []byte("one more")}, {Key: []byte("5")}})
			requireOnlyLatest(t, v)
			content.requireContent(t, v)
		})
	}
}

// advanceChecked does what advance does, for a version v with this content.
func (p *pins) advanceChecked(t require.TestingT, v *Version, block []Change, content model) *Version {
	next := p.advance(t, v, block)
	for i := range p.held {
		if h := &p.held[i]; h.v == v {
			h.content = content
		}
	}
	return next
}

// TestReleasedTogether releases the oldest versions, many between two calls of Apply and in any
// order. No node is passed from one of them to another, each Apply frees a bounded number of nodes,
// and at the end the tree holds the same nodes as if the versions had been released one by one.
func TestReleasedTogether(t *testing.T) {
	rnd := seeds.Rand(t)
	reclaimSlowly(t, 300)
	for range scaled(12) {
		v, versions := mustEmpty(t, 3000), []*Version(nil)
		p := &pins{policy: pinAll, rnd: rnd}
		freed, most := 0, 0
		for round := range 10 {
			for range 1 + rnd.IntN(40) {
				block := randomBlock(rnd, 1+rnd.IntN(200), 1500, 0.1, false)
				before, early := v.Memory(), v.tree.early(len(block))
				next := mustApply(t, v, block...)
				p.requireReclaimed(t, v, before, early)
				versions, v = append(versions, v), next
				done := v.Reclaimed()
				require.Zero(t, done.PassedOn)
				if before.Versions > len(versions) { // more than those in use
					require.NotZero(t, done.Freed+before.Versions+1-v.Memory().Versions, "no progress")
				}
				freed, most = freed+done.Freed, max(most, done.Freed)
			}
			n := 1 + rnd.IntN(len(versions))
			if round == 9 {
				n = len(versions)
			}
			for _, i := range rnd.Perm(n) {
				versions[i].Release()
			}
			versions = versions[n:]
		}
		requireOnlyLatest(t, v)
		require.Greater(t, freed, 2*most, "nothing was left to a later Apply")
		v.Release()
	}
}

func TestReleaseTooOften(t *testing.T) {
	v := mustApply(t, mustEmpty(t, 100), Change{[]byte("a"), []byte("1")})
	v.Retain()
	v.Release()
	require.True(t, v.TryRetain())
	v.Release()
	v.Release()
	require.False(t, v.TryRetain())
	require.Panics(t, v.Retain)
	require.Panics(t, v.Release)
}

func TestUseAfterRelease(t *testing.T) {
	empty := mustEmpty(t, 100)
	v := mustApply(t, empty, Change{[]byte("a"), []byte("1")}, Change{[]byte("b"), []byte("2")})
	p, err := v.Prune(func(Subtree) bool { return false })
	require.NoError(t, err)
	root, commitment := v.Root(), v.Commitment()
	v.Release()
	p.Release()
	a := []byte("a")
	for name, use := range map[string]func(){
		"Get":           func() { _, _, _ = v.Get(a) },
		"View":          func() { _, _, _ = v.View(a) },
		"Has":           func() { _, _ = v.Has(a) },
		"Floor":         func() { _, _, _, _ = v.Floor(a) },
		"Ascend":        func() { collect2(v.Ascend(nil, nil)) },
		"Leaves":        func() { collect2(v.Leaves()) },
		"NewInner":      func() { collect2(v.NewInner(nil)) },
		"NewInner base": func() { collect2(v.NewInner(empty)) },
		"RangeBytes":    func() { _, _ = v.RangeBytes(a, nil) },
		"Chunk":         func() { _, _ = v.Chunk(0) },
		"Manifest":      func() { v.Manifest() },
		"ChunkKeys":     func() { _, _ = v.ChunkKeys() },
		"Prove":         func() { _, _ = v.Prove(a) },
		"ProveRange":    func() { _, _, _, _ = v.ProveRange(nil, nil, 1) },
		"Apply":         func() { _, _ = v.Apply(nil) },
		"Prune":         func() { _, _ = v.Prune(func(Subtree) bool { return true }) },
		"Partial.Get":   func() { _, _, _ = p.Get(a) },
		"Partial.Prove": func() { _, _ = p.Prove(a) },
		"Partial.Apply": func() { _, _ = p.Apply(nil) },
		"Partial.Prune": func() { _, _ = p.Prune(func(Subtree) bool { return true }) },
	} {
		require.PanicsWithValue(t, "avlstar: use of a released version", use, name)
	}
	require.Equal(t, root, v.Root(), "what needs no node")
	require.Equal(t, commitment, v.Commitment())

	// A panic leaves no lock behind.
	next := mustApply(t, empty, Change{a, a})
	require.Equal(t, uint64(1), next.Len())
}

func TestNotLatest(t *testing.T) {
	a := Change{[]byte("a"), []byte("1")}
	v1 := advance(t, mustEmpty(t, 100), a)
	v2 := mustApply(t, v1, Change{[]byte("a"), []byte("2")})
	v3 := mustApply(t, v2, Change{[]byte("b"), []byte("3")})
	for _, old := range []*Version{v1, v2} {
		_, err := old.Apply([]Change{{[]byte("c"), []byte("4")}})
		require.ErrorIs(t, err, ErrNotLatest)
		_, err = old.Apply(nil)
		require.ErrorIs(t, err, ErrNotLatest)
	}
	v3.Release()
	_, err := v1.Apply([]Change{a})
	require.ErrorIs(t, err, ErrNotLatest, "v2 is in use")
	for v, want := range map[*Version]string{v1: "1", v2: "2"} {
		got, _ := mustGet(t, v, []byte("a"))
		require.Equal(t, want, string(got))
	}
	v2.Release()
	v4 := mustApply(t, v1, Change{[]byte("d"), []byte("5")})
	require.False(t, mustHas(t, v4, []byte("b")))
	requireInvariants(t, v4)
	v1.Release()
	requireOnlyLatest(t, v4)
}

// TestSameVersion: an Apply that changes nothing gives its caller a reference of its own.
func TestSameVersion(t *testing.T) {
	v := mustApply(t, mustEmpty(t, 100), Change{[]byte("a"), []byte("1")})
	same := mustApply(t, v, Change{[]byte("a"), []byte("1")})
	require.Same(t, v, same)
	v.Release()
	got, ok := mustGet(t, same, []byte("a"))
	require.True(t, ok)
	require.Equal(t, "1", string(got))
	same.Release()
	require.False(t, v.TryRetain())
}

// TestRewind goes back several versions. The versions between are released before, while or after
// newer ones are made.
func TestRewind(t *testing.T) {
	rnd := seeds.Rand(t)
	for range scaled(60) {
		v, content := mustEmpty(t, 500), model{}
		for range scaled(20) {
			block := randomBlock(rnd, 1+rnd.IntN(100), 200, 0.3, false)
			content.apply(block)
			v = advance(t, v, block...)
			// Versions after v, which several goroutines release at once.
			at, later := v, []*Version{}
			for range rnd.IntN(8) {
				at = mustApply(t, at, randomBlock(rnd, 1+rnd.IntN(100), 200, 0.5, false)...)
				later = append(later, at)
				if n := len(later); n > 1 && rnd.IntN(3) == 0 { // before newer ones are made
					i := rnd.IntN(n - 1)
					later[i].Release()
					later = append(later[:i], later[i+1:]...)
				}
			}
			// Apply must neither wait for a concurrent release nor be disturbed by it.
			if rnd.IntN(2) == 0 && len(later) > 0 {
				var wg sync.WaitGroup
				for _, l := range later {
					wg.Go(l.Release)
				}
				for {
					next, err := v.Apply([]Change{{[]byte("rewound"), fmt.Append(nil, rnd.Uint64())}})
					if err == nil {
						next.Release()
						break
					}
					require.ErrorIs(t, err, ErrNotLatest)
				}
				wg.Wait()
			} else {
				for _, i := range rnd.Perm(len(later)) {
					later[i].Release()
				}
			}
			content.requireContent(t, v)
		}
		v = advance(t, v, Change{[]byte("last"), []byte("one more")})
		requireOnlyLatest(t, v)
	}
}
