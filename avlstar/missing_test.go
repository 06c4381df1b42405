package avlstar

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// applyAsking applies a block to p and requests missing nodes from v, the state before it. It
// returns the result and the number of requests.
func applyAsking(t require.TestingT, p *Partial, v *Version, block []Change) (next *Partial, rounds int) {
	r := multiproofReceiver{p: p}
	for {
		next, err := r.p.Apply(block)
		var missing *MissingNodeError
		if !errors.As(err, &missing) {
			require.NoError(t, err)
			return next, rounds
		}
		r.ask(t, v, missing, block)
		rounds++
	}
}

// TestMissingIsAskedAtOnce: one request fetches all nodes that puts or one deletion need, and
// nearly always all that a block needs.
func TestMissingIsAskedAtOnce(t *testing.T) {
	rnd := seeds.Rand(t)
	var blocks, rounds, asked int
	for range scaled(150) {
		n := 1 << rnd.IntN(11)
		v := randomState(t, rnd, n)
		size, deletes := 1+rnd.IntN(64), []float64{0, 0.2, 0.9}[rnd.IntN(3)]
		if rnd.IntN(2) == 0 {
			size = 1
		}
		block := randomBlock(rnd, size, 2*n, deletes, false)
		p, err := v.Prune(func(s Subtree) bool { return s.Hash[0]&3 == 0 && s.Hash != v.top.Hash || rnd.IntN(20) == 0 })
		require.NoError(t, err)
		next, times := applyAsking(t, p, v, block)
		full := mustApply(t, v, block...)
		require.Equal(t, full.Commitment(), next.Commitment())
		if len(block) == 1 || !slices.ContainsFunc(wantsOf(block), isDeleted) {
			require.LessOrEqual(t, times, 1, "%d changes", len(block))
		}
		if times > 0 {
			asked, rounds = asked+1, rounds+times
		}
		blocks++
		full.Release()
		v.Release()
	}
	t.Logf("%d blocks, %d needed missing nodes and sent %d requests", blocks, asked, rounds)
}

// TestMissingIsTheSame: the nodes that an Apply reports as missing, and the tree that it leaves, do
// not depend on the number of goroutines.
func TestMissingIsTheSame(t *testing.T) {
	rnd := seeds.Rand(t)
	usual := tune
	defer func() { tune = usual }()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	failed, made := 0, 0
	// A few rounds may draw no block with a missing node, or only such blocks: then there are more.
	for round := 0; round < scaled(60) || round < 1000 && (failed == 0 || made == 0); round++ {
		tune = usual
		tune.minChanges, tune.minTask, tune.minTaskHeight, tune.maxBackoff = 4, 1+rnd.IntN(3), uint8(1+rnd.IntN(3)), 0
		n := 1 << (3 + rnd.IntN(8))
		v := randomState(t, rnd, n)
		block := randomBlock(rnd, 4<<rnd.IntN(8), 2*n, []float64{0, 0.2, 0.9}[rnd.IntN(3)], false)
		p := lacking(t, rnd, v, block)
		before, ends := p.v.Memory(), stubsAndLeaves(p)
		var want *MissingNodeError
		var commitment Commitment
		for i, procs := range []int{1, 2, 3, 8} {
			runtime.GOMAXPROCS(procs)
			next, err := p.Apply(block)
			var missing *MissingNodeError
			if errors.As(err, &missing) {
				failed++
				require.Equal(t, before, p.v.Memory())
				require.Equal(t, ends, stubsAndLeaves(p))
				requireAll(t, missing, ends)
			} else {
				require.NoError(t, err)
				made++
				if i > 0 {
					require.Equal(t, commitment, next.Commitment())
				}
				commitment = next.Commitment()
				next.Release()
			}
			if i > 0 {
				require.Equal(t, want, missing, "GOMAXPROCS %d", procs)
			}
			want = missing
		}
		p.Release()
		v.Release()
	}
	require.Positive(t, failed)
	require.Positive(t, made)
}

// The result is a part of v in which all nodes that block needs are present, or a few are missing.
func lacking(t require.TestingT, rnd *rand.Rand, v *Version, block []Change) *Partial {
	var keys [][]byte
	for _, c := range block {
		if rnd.IntN(len(block)) > 0 {
			keys = append(keys, c.Key)
		}
	}
	sibling := rnd.IntN(2) == 0
	p, err := v.Prune(func(s Subtree) bool { return !touches(s, keys) && (sibling || rnd.IntN(2) == 0) })
	require.NoError(t, err)
	return p
}

// requireAll checks that an error names stubs, each once and all after the first one in key order.
func requireAll(t require.TestingT, missing *MissingNodeError, ends []Stub) {
	all, last := missing.All(), -1
	require.Len(t, missing.Held(), len(all))
	for i, m := range all {
		at := slices.Index(ends, m.Node)
		require.GreaterOrEqual(t, at, 0, "no stub")
		if i > 0 {
			require.Greater(t, at, last, "not in key order")
			last = at
		}
	}
}
