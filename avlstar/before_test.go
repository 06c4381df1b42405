package avlstar

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// history is what a chain of blocks made: the state after each, as it was, and how to go back.
type history struct {
	rnd    *rand.Rand
	keys   int
	v      *Version
	states []keptState
	undos  [][]byte // the first leads from states[1] to states[0]
	disk   *disk    // nil: all is in memory
}

// keptState is what a version was.
type keptState struct {
	c      Commitment
	leaves []Leaf
	proof  Proof // of the greatest key
}

func whatIs(t require.TestingT, v *Version) keptState {
	s := keptState{c: v.Commitment()}
	for l := range mustLeaves(t, v) {
		s.leaves = append(s.leaves, Leaf{Key: bytes.Clone(l.Key), Value: bytes.Clone(l.Value), Height: l.Height})
	}
	if n := len(s.leaves); n > 0 {
		var err error
		s.proof, err = v.Prove(s.leaves[n-1].Key)
		require.NoError(t, err)
	}
	return s
}

func (s keptState) require(t require.TestingT, v *Version) {
	got := whatIs(t, v)
	require.Equal(t, s.c, got.c)
	require.Equal(t, s.c.AppHash(), v.AppHash())
	require.Equal(t, s.leaves, got.leaves)
	require.Equal(t, s.proof, got.proof)
	if v.uncounted { // of a version that nothing but Before made
		require.Equal(t, s.c.Chunks, v.NumChunks())
		return
	}
	require.Equal(t, uint64(len(s.leaves)), v.Len())
}

// block makes a block: some keys are put, some put again as they were, some deleted.
func (s *history) block(t require.TestingT) {
	var changes []Change
	named := make(map[string]bool)
	for range s.rnd.IntN(20) {
		key := randomKey(s.rnd, s.keys)
		if s.rnd.IntN(8) == 0 { // the left edge
			if k, _, ok := mustLeast(t, s.v); ok {
				key = k
			}
		}
		if named[string(key)] {
			continue
		}
		named[string(key)] = true
		c := Change{Key: key}
		switch s.rnd.IntN(5) {
		case 0, 1:
		case 2:
			if c.Value, _ = mustGet(t, s.v, key); c.Value != nil {
				break
			}
			fallthrough
		default:
			c.Value = fmt.Appendf(nil, "value %d", s.rnd.IntN(1<<s.rnd.IntN(30)))
		}
		changes = append(changes, c)
	}
	if s.rnd.IntN(30) == 0 { // all is deleted
		for l := range mustLeaves(t, s.v) {
			if !named[string(l.Key)] {
				changes = append(changes, Change{Key: bytes.Clone(l.Key)})
			}
		}
	}
	s.apply(t, changes...)
}

func mustLeast(t require.TestingT, v *Version) (key, value []byte, ok bool) {
	for l := range mustLeaves(t, v) {
		return bytes.Clone(l.Key), l.Value, true
	}
	return nil, nil, false
}

func (s *history) apply(t require.TestingT, changes ...Change) {
	next, err := s.v.Apply(changes)
	require.NoError(t, err)
	u, err := next.Undo(s.v, changes)
	require.NoError(t, err)
	s.undos = append(s.undos, u.Encode())
	s.v.Release()
	s.v = next
	s.states = append(s.states, whatIs(t, next))
	if s.disk != nil && s.rnd.IntN(3) == 0 {
		s.disk.store(t, next)
		next.Stored()
	}
}

func newHistory(t require.TestingT, rnd *rand.Rand, paged bool) *history {
	s := &history{rnd: rnd, keys: 10 + rnd.IntN(200)}
	v, err := Empty(uint64(1 + rnd.IntN(300)))
	require.NoError(t, err)
	s.v = v
	if paged {
		s.disk = &disk{}
		v.EnablePaging(s.paging())
	}
	s.states = []keptState{whatIs(t, v)}
	for range 20 + rnd.IntN(60) {
		s.block(t)
	}
	return s
}

func (s *history) paging() Paging {
	return Paging{Pages: s.disk, Budget: func() int64 { return 0 }}
}

// restart loads the last state again, as a program does that has nothing else.
func (s *history) restart(t require.TestingT) {
	if s.disk == nil {
		v, err := FromLeaves(s.v.ChunkBytes(), withoutError(slices.Values(s.states[len(s.states)-1].leaves)))
		require.NoError(t, err)
		s.v.Release()
		s.v = v
		return
	}
	s.disk.store(t, s.v)
	s.disk.generations = s.disk.generations[len(s.disk.generations)-1:]
	v, err := FromLeavesPaged(s.v.ChunkBytes(), s.paging(), withoutError(slices.Values(s.disk.generations[0])))
	require.NoError(t, err)
	s.v.Release()
	s.v = v
}

// TestBeforeGoesBack: after a restart, each earlier version is made again as it was, while blocks
// follow, and versions are released in any order.
func TestBeforeGoesBack(t *testing.T) {
	smallPages(t, 200)
	for _, paged := range []bool{false, true} {
		t.Run(fmt.Sprintf("paged %v", paged), func(t *testing.T) {
			rnd := seeds.Rand(t)
			for range 15 {
				s := newHistory(t, rnd, paged)
				s.restart(t)
				base := len(s.states) - 1
				at, first := s.v, s.v
				first.Retain()
				back := map[int]*Version{}
				s.states[base].require(t, at)
				for h := base; h > 0; h-- {
					for range rnd.IntN(3) {
						s.block(t)
					}
					u, err := DecodeUndo(s.undos[h-1])
					require.NoError(t, err)
					at, err = at.Before(u)
					require.NoError(t, err)
					s.states[h-1].require(t, at)
					back[h-1] = at
				}
				first.Release()
				// The oldest first, as an application does, but for some that readers have.
				for h := range base {
					if rnd.IntN(3) == 0 {
						s.block(t)
					}
					if v := back[h]; v != nil && rnd.IntN(4) > 0 {
						s.states[h].require(t, v)
						v.Release()
						delete(back, h)
					}
				}
				for h, v := range back {
					s.states[h].require(t, v)
					v.Release()
				}
				s.block(t)
				requireNoSide(t, s.v)
			}
		})
	}
}

// requireNoSide checks that nothing of a side line is left, nor of any other version.
func requireNoSide(t require.TestingT, v *Version) {
	tr := v.tree
	tr.mu.Lock()
	tr.reclaim(math.MaxInt, new(Reclaimed))
	side := tr.mu.side
	tr.mu.Unlock()
	require.Nil(t, side)
	requireMemory(t, &Partial{v})
}

// TestDamagedUndo: a record that leads elsewhere makes no version and leaves no node, whatever is
// wrong with it.
func TestDamagedUndo(t *testing.T) {
	smallPages(t, 200)
	for _, paged := range []bool{false, true} {
		t.Run(fmt.Sprintf("paged %v", paged), func(t *testing.T) {
			rnd := seeds.Rand(t)
			s := newHistory(t, rnd, paged)
			for s.states[len(s.states)-1].c == s.states[len(s.states)-2].c {
				s.block(t)
			}
			s.restart(t)
			good, want := s.undos[len(s.undos)-1], s.states[len(s.states)-2]
			before := s.v.Memory()
			for range 2000 {
				b := bytes.Clone(good)
				switch rnd.IntN(4) {
				case 0:
					b = b[:rnd.IntN(len(b))]
				case 1:
					b = slices.Insert(b, rnd.IntN(len(b)+1), byte(rnd.Uint32()))
				default:
					b[rnd.IntN(len(b))] ^= 1 << rnd.IntN(8)
				}
				u, err := DecodeUndo(b)
				if err != nil {
					require.ErrorIs(t, err, ErrInvalidUndo)
					continue
				}
				v, err := s.v.Before(u)
				if err != nil {
					now := s.v.Memory()
					require.Equal(t, before.InnerNodes+before.Leaves, now.InnerNodes+now.Leaves, "nodes are left")
					require.Equal(t, before.Versions, now.Versions)
					continue
				}
				if v.Commitment() == want.c { // the damage changes nothing
					want.require(t, v)
				}
				v.Release()
				s.v.tree.mu.Lock()
				s.v.tree.reclaimSide(math.MaxInt, new(Reclaimed))
				s.v.tree.account()
				s.v.tree.mu.Unlock()
			}
			u, err := DecodeUndo(good)
			require.NoError(t, err)
			v, err := s.v.Before(u)
			require.NoError(t, err)
			want.require(t, v)

			_, err = s.v.Before(u)
			require.ErrorIs(t, err, ErrNotLatest, "another side line")
			_, err = v.Apply([]Change{{[]byte("k"), []byte("v")}})
			require.ErrorIs(t, err, ErrNotLatest, "blocks follow the main line")
			v.Release()
		})
	}
}

// TestBeforeFailsWherePagesDo: a page that cannot be read makes no version.
func TestBeforeFailsWherePagesDo(t *testing.T) {
	smallPages(t, 200)
	s := newHistory(t, seeds.Rand(t), true)
	s.apply(t, Change{[]byte("one more key"), []byte("v")})
	s.apply(t, Change{[]byte("one more key"), []byte("w")})
	s.restart(t)
	u, err := DecodeUndo(s.undos[len(s.undos)-1])
	require.NoError(t, err)
	s.disk.broken.Store(true)
	_, err = s.v.Before(u)
	require.ErrorIs(t, err, errBroken)
	s.disk.broken.Store(false)
	v, err := s.v.Before(u)
	require.NoError(t, err)
	s.states[len(s.states)-2].require(t, v)
	v.Release()

	changes := []Change{{s.states[len(s.states)-1].leaves[0].Key, []byte("another value")}}
	next := mustApply(t, s.v, changes...)
	s.disk.broken.Store(true)
	_, err = next.Undo(s.v, changes)
	require.ErrorIs(t, err, errBroken)
	s.disk.broken.Store(false)
	u, err = next.Undo(s.v, changes)
	require.NoError(t, err)
	require.Equal(t, s.v.Commitment(), u.To)
	_, err = s.v.Undo(next, changes)
	require.ErrorIs(t, err, ErrOtherState)
}

func FuzzDecodeUndo(f *testing.F) {
	s := newHistory(f, rand.New(rand.NewPCG(1, 2)), false)
	for _, b := range s.undos {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		u, err := DecodeUndo(b)
		if err != nil {
			require.ErrorIs(t, err, ErrInvalidUndo)
			return
		}
		again, err := DecodeUndo(u.Encode())
		require.NoError(t, err)
		require.Equal(t, u, again)
	})
}

// BenchmarkUndo measures what one block of 1,000 changed keys of 300,000 costs: the record made
// behind the block, its length, and the way back.
func BenchmarkUndo(b *testing.B) {
	rnd := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // it is to be repeatable
	v := mustEmpty(b, 1<<20)
	var leaves []Change
	for i := range 300_000 {
		leaves = append(leaves, Change{spreadKey(i), bytes.Repeat([]byte("v"), 100)})
	}
	base := advance(b, v, leaves...)
	changes := make([]Change, 0, 1000)
	for _, i := range rnd.Perm(300_000)[:1000] {
		changes = append(changes, Change{spreadKey(i), bytes.Repeat([]byte("w"), 100)})
	}
	for i := range 50 { // some are new, and some are gone
		changes[i].Key = append(bytes.Clone(changes[i].Key), 1)
		changes[50+i].Value = nil
	}
	next, err := base.Apply(changes)
	require.NoError(b, err)
	u, err := next.Undo(base, changes)
	require.NoError(b, err)
	record := u.Encode()
	b.Run("make", func(b *testing.B) {
		for b.Loop() {
			u, err := next.Undo(base, changes)
			if err != nil {
				b.Fatal(err)
			}
			u.Encode()
		}
		b.ReportMetric(float64(len(record)), "bytes")
	})
	b.Run("back", func(b *testing.B) {
		for b.Loop() {
			u, err := DecodeUndo(record)
			if err != nil {
				b.Fatal(err)
			}
			v, err := next.Before(u)
			if err != nil {
				b.Fatal(err)
			}
			v.Release()
		}
	})
}
