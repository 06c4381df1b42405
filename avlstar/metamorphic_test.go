package avlstar

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/avlstar/sha256mb"
	"github.com/starling-kv/starling/internal/seeds"
)

// TestMetamorphic runs a random list of blocks under many configurations. After every block, all
// must agree with each other and with the naive reference tree:
//
//	               ┌ pins         released at once, kept, at random, in random order, forks given up; freed at once or slowly
//	               ├ lanes        each kernel of this CPU
//	blocks ──────▶ ├ procs        GOMAXPROCS 1, 2, 8           ──▶ root, manifest, chunks, proofs
//	               ├ batches      a block in several calls of Apply
//	               ├ reload       from leaves or from chunks, between blocks
//	               ├ partial      stubs for everything except the nodes that a block touches
//	               ├ multiproofs  a validator with the upper tree, and multiproofs of this version or older ones
//	               ├ paged        pages leave memory and come back
//	               └ index        values are found by their keys' hashes
func TestMetamorphic(t *testing.T) {
	rnd := seeds.Rand(t)
	for i := range scaled(4) {
		t.Run(fmt.Sprint("story ", i), func(t *testing.T) { newStory(rnd, 40).compareAll(t) })
	}
}

func (s *story) compareAll(t *testing.T) {
	want := s.run(t, config{})
	s.compareReference(t, want)
	for name, policy := range map[string]pinPolicy{"all": pinAll, "some": pinSome, "random order": pinShuffled, "forks": pinForks} {
		t.Run("pins "+name, func(t *testing.T) {
			s.requireRun(t, want, config{pins: policy})
			reclaimSlowly(t, 1+int(s.seed%50))
			s.requireRun(t, want, config{pins: policy})
		})
	}
	for _, k := range sha256mb.Kernels() {
		t.Run("lanes "+k.Name, func(t *testing.T) {
			useKernel(t, k)
			s.requireRun(t, want, config{})
		})
	}
	for _, why := range sha256mb.Absent() {
		t.Log("NOT RUN: " + why)
	}
	for _, procs := range []int{1, 2, 8} {
		t.Run(fmt.Sprint("procs ", procs), func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
			s.requireRun(t, want, config{pins: pinSome, reload: reloadSometimes})
		})
	}
	for _, n := range []int{1, 2, 17, 150} {
		t.Run(fmt.Sprint("batches of ", n), func(t *testing.T) { s.requireRun(t, want, config{batch: n}) })
	}
	t.Run("reload from leaves", func(t *testing.T) { s.requireRun(t, want, config{reload: fromLeaves}) })
	t.Run("reload from chunks", func(t *testing.T) { s.requireRun(t, want, config{reload: fromChunks}) })
	t.Run("partial", func(t *testing.T) { s.requireRun(t, want, config{partial: true}) })
	for _, depth := range []int{0, 1, 5, 100} {
		t.Run(fmt.Sprint("multiproofs below ", depth), func(t *testing.T) {
			s.requireRun(t, want, config{multiproofs: true, depth: depth})
			s.requireRun(t, want, config{multiproofs: true, depth: depth, pins: pinSome, reload: reloadSometimes})
			usual := tune
			defer func() { tune = usual }()
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
			tune.minChanges, tune.minTask, tune.minTaskHeight, tune.maxBackoff = 4, 2, 2, 0
			s.requireRun(t, want, config{multiproofs: true, depth: depth})
		})
	}
	for _, n := range []uint64{1, 300, 3000} {
		t.Run(fmt.Sprint("pages of ", n), func(t *testing.T) {
			smallPages(t, n)
			s.requireRun(t, want, config{paged: true})
			for _, policy := range []pinPolicy{pinAll, pinShuffled, pinForks} {
				s.requireRun(t, want, config{paged: true, pins: policy})
			}
			s.requireRun(t, want, config{paged: true, pins: pinSome, batch: 60, partial: true})
			usual := tune
			defer func() { tune = usual }()
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
			tune.minChanges, tune.minTask, tune.minTaskHeight, tune.maxBackoff = 4, 2, 2, 0
			s.requireRun(t, want, config{paged: true, pins: pinForks})
			reclaimSlowly(t, 1+int(s.seed%50))
			s.requireRun(t, want, config{paged: true, pins: pinForks})
			s.requireRun(t, want, config{paged: true, pins: pinShuffled})
		})
	}
	for _, tags := range []uint32{math.MaxUint32, fewTags} {
		t.Run(fmt.Sprintf("index of tags %x", tags), func(t *testing.T) {
			indexAll(t, tags)
			s.requireRun(t, want, config{reload: reloadSometimes})
			s.requireRun(t, want, config{pins: pinShuffled})
			smallPages(t, 300)
			s.requireRun(t, want, config{paged: true, pins: pinForks})
		})
	}
	t.Run("all at once", func(t *testing.T) {
		s.requireRun(t, want, config{pins: pinShuffled, batch: 60, reload: reloadSometimes, partial: true})
	})
}

// story is a list of blocks, and keys to prove after each.
type story struct {
	chunkBytes uint64
	blocks     [][]Change
	ask        [][]byte
	seed       uint64 // for the random choices of a configuration
}

func newStory(rnd *rand.Rand, blocks int) *story {
	s := &story{chunkBytes: 1 + rnd.Uint64N(1<<rnd.IntN(15)), seed: rnd.Uint64()}
	keys, deletes := 10<<rnd.IntN(8), 0.1
	for range blocks {
		if rnd.IntN(5) == 0 {
			deletes = []float64{0, 0.2, 0.5, 0.9}[rnd.IntN(4)]
		}
		s.blocks = append(s.blocks, randomBlock(rnd, rnd.IntN(1<<rnd.IntN(11)), keys, deletes, true))
	}
	for range 20 {
		s.ask = append(s.ask, randomKey(rnd, keys+keys/10)) // present or absent
	}
	s.ask = append(s.ask, []byte{0}, []byte{0xff, 0xff})
	return s
}

// outcomeOf holds the results that must be equal in all configurations after a block.
type outcomeOf struct {
	Commitment      Commitment
	Manifest        Hash
	Chunks, Proofs  Hash
	Content, Ranges Hash
}

type config struct {
	pins        pinPolicy
	batch       int // number of changes of one Apply, 0: all
	reload      func(t *testing.T, rnd *rand.Rand, v *Version) *Version
	partial     bool
	paged       bool
	multiproofs bool // with at least depth inner nodes of each path in memory
	depth       int
}

func (s *story) requireRun(t *testing.T, want []outcomeOf, c config) {
	t.Helper()
	for i, got := range s.run(t, c) {
		require.Equal(t, want[i], got, "block %d", i)
	}
}

func (s *story) run(t *testing.T, c config) (outcomes []outcomeOf) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(s.seed, 1))
	p := &pins{policy: c.pins, rnd: rnd}
	v := mustEmpty(t, s.chunkBytes)
	var paging pagingStory
	if c.paged {
		paging = pagingStory{disk: &disk{}, rnd: rnd}
		paging.enable(v)
		c.reload = paging.reload
	}
	receiver := multiproofReceiver{depth: c.depth, rnd: rnd}
	for i, block := range s.blocks {
		if c.multiproofs {
			receiver.apply(t, v, block)
		}
		var partial *Partial
		if c.partial {
			partial = applyPartial(t, v, block)
		}
		batch := max(1, len(block))
		if c.batch > 0 {
			batch = c.batch
		}
		for part := range slices.Chunk(block, batch) {
			v = p.advance(t, v, part)
			if c.paged {
				paging.after(t, v)
			}
		}
		if c.reload != nil {
			if again := c.reload(t, rnd, v); again != v {
				p.releaseAll() // they belong to another tree
				v.Release()
				v = again
			}
		}
		if c.multiproofs {
			receiver.require(t, v)
		}
		if partial != nil {
			require.Equal(t, v.Commitment(), partial.Commitment())
			partial.Release()
		}
		full := i%8 == 7 || i+1 == len(s.blocks)
		outcomes = append(outcomes, s.outcome(t, v, full))
	}
	for _, h := range p.held { // unchanged, even if nodes have left memory since
		requireRebuilds(t, h.v)
		requireFound(t, h.v)
	}
	p.releaseAll()
	if c.paged {
		return outcomes
	}
	v = advance(t, v, Change{[]byte("last"), []byte("one more")})
	v = advance(t, v, Change{[]byte("last"), []byte("another")})
	requireOnlyLatest(t, v)
	return outcomes
}

// requireRebuilds rebuilds a version from its leaves.
func requireRebuilds(t *testing.T, v *Version) {
	t.Helper()
	again, err := FromLeaves(v.ChunkBytes(), v.Leaves())
	require.NoError(t, err)
	require.Equal(t, v.Commitment(), again.Commitment())
	again.Release()
}

func (s *story) outcome(t *testing.T, v *Version, full bool) (o outcomeOf) {
	t.Helper()
	o.Commitment = v.Commitment()
	if !full {
		return o
	}
	o.Manifest = sha256.Sum256(v.Manifest().Encode())
	h := sha256.New()
	for _, c := range encodeChunks(t, v) {
		h.Write(c)
	}
	o.Chunks = Hash(h.Sum(nil))
	h.Reset()
	for _, key := range s.ask {
		p, err := v.Prove(key)
		require.NoError(t, err)
		value, _ := mustGet(t, v, key)
		require.NoError(t, VerifyProof(v.AppHash(), key, value, p))
		fmt.Fprintf(h, "%x %x", p.State, p.Map)
	}
	o.Proofs = Hash(h.Sum(nil))
	h.Reset()
	for i, start := range s.ask {
		end := s.ask[(i+1)%len(s.ask)]
		if string(start) >= string(end) {
			continue
		}
		entries, next, p, err := v.ProveRange(start, end, 7)
		require.NoError(t, err)
		require.NoError(t, VerifyRange(v.AppHash(), start, end, 7, entries, next, p))
		fmt.Fprintf(h, "%x %x %x %x", entries, next, p.Tree, p.Map)
	}
	o.Ranges = Hash(h.Sum(nil))
	h.Reset()
	for l := range mustLeaves(t, v) {
		h.Write(record.Append(nil, l))
	}
	o.Content = Hash(h.Sum(nil))
	requireFound(t, v)
	return o
}

func (s *story) compareReference(t *testing.T, got []outcomeOf) {
	t.Helper()
	var n *refNode
	for i, block := range s.blocks {
		n = refApply(n, block)
		require.Equal(t, refCommit(n), got[i].Commitment.Root, "block %d", i)
	}
}

func fromLeaves(t *testing.T, _ *rand.Rand, v *Version) *Version {
	again, err := FromLeaves(v.ChunkBytes(), v.Leaves())
	require.NoError(t, err)
	return withIndex(again)
}

func fromChunks(t *testing.T, _ *rand.Rand, v *Version) *Version {
	m, err := VerifyManifest(v.Manifest().Encode(), v.AppHash())
	require.NoError(t, err)
	var chunks []*Chunk
	for k, data := range encodeChunks(t, v) {
		c, err := m.VerifyChunk(uint32(k), data)
		require.NoError(t, err)
		chunks = append(chunks, c)
	}
	again, err := Assemble(m, chunks)
	require.NoError(t, err)
	return withIndex(again)
}

func reloadSometimes(t *testing.T, rnd *rand.Rand, v *Version) *Version {
	switch rnd.IntN(6) {
	case 0:
		return fromLeaves(t, rnd, v)
	case 1:
		return fromChunks(t, rnd, v)
	}
	return v
}

// applyPartial applies a block to a tree with only the nodes that the block touches, and adds the
// nodes that an error names, until it succeeds.
func applyPartial(t *testing.T, v *Version, block []Change) *Partial {
	t.Helper()
	var needed [][]byte
	for _, c := range block {
		needed = append(needed, c.Key)
	}
	have := map[Stub]bool{}
	for {
		p, err := v.Prune(func(s Subtree) bool { return !have[s.Stub] && !touches(s, needed) })
		require.NoError(t, err)
		next, err := p.Apply(block)
		var missing *MissingNodeError
		if !errors.As(err, &missing) {
			require.NoError(t, err)
			p.Release()
			return next
		}
		require.False(t, have[missing.Node], "requested twice")
		have[missing.Node] = true
		p.Release()
	}
}

// touches reports whether one of keys, in ascending order, lies in s.
func touches(s Subtree, keys [][]byte) bool {
	i, found := slices.BinarySearchFunc(keys, s.First, func(a, b []byte) int { return slices.Compare(a, b) })
	return found || i < len(keys) && (s.After == nil || string(keys[i]) < string(s.After))
}
