package avlstar

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar/record"
	"github.com/starling-kv/starling/internal/seeds"
)

// disk holds the data that a tree's pages are read from: the leaves of several versions, as a store
// keeps them for versions that are still in use.
type disk struct {
	generations [][]Leaf // oldest first
	reads       atomic.Int64
	broken      atomic.Bool
}

var (
	errBroken = errors.New("the disk is broken")
	errNoPage = errors.New("no generation has the page")
)

// store makes v the newest generation.
func (d *disk) store(t require.TestingT, v *Version) {
	var leaves []Leaf
	for l := range mustLeaves(t, v) {
		leaves = append(leaves, Leaf{Key: bytes.Clone(l.Key), Value: bytes.Clone(l.Value), Height: l.Height})
	}
	require.Len(t, leaves, int(v.Len()))
	d.generations = append(d.generations, leaves)
}

func (d *disk) Page(s Subtree) (*Page, error) {
	d.reads.Add(1)
	if d.broken.Load() {
		return nil, errBroken
	}
	byKey := func(l Leaf, key []byte) int { return bytes.Compare(l.Key, key) }
	for _, leaves := range slices.Backward(d.generations) {
		from, _ := slices.BinarySearchFunc(leaves, s.First, byKey)
		to := len(leaves)
		if s.After != nil {
			to, _ = slices.BinarySearchFunc(leaves, s.After, byKey)
		}
		for from := from; from < to; from++ {
			var records []byte
			for _, l := range leaves[from:to] {
				if uint64(len(records)) >= s.Bytes {
					break
				}
				records = record.Append(records, l)
			}
			if p, err := VerifyPage(s.Stub, records); err == nil {
				if len(records)%2 == 0 {
					p = p.Compact()
				}
				return p, nil
			}
			if s.First != nil {
				break
			}
		}
	}
	return nil, fmt.Errorf("%w %v", errNoPage, s)
}

// smallPages makes pages small, so that the small trees of tests have many.
func smallPages(t *testing.T, bytes uint64) {
	t.Helper()
	old := tune.pageBytes
	tune.pageBytes = bytes
	t.Cleanup(func() { tune.pageBytes = old })
}

// pagingStory makes a tree keep almost nothing in memory, and stores versions at random.
type pagingStory struct {
	disk   *disk
	rnd    *rand.Rand
	budget int64
}

func (p *pagingStory) enable(v *Version) {
	v.EnablePaging(Paging{Pages: p.disk, Budget: func() int64 { return p.budget }})
}

// after is called with each version that is made.
func (p *pagingStory) after(t require.TestingT, v *Version) {
	p.budget = []int64{0, 0, 1000, 20_000, 1 << 40}[p.rnd.IntN(5)]
	if p.rnd.IntN(2) == 0 {
		p.disk.store(t, v)
		v.Stored()
	}
}

// reload rebuilds the tree from the disk, sometimes.
func (p *pagingStory) reload(t *testing.T, _ *rand.Rand, v *Version) *Version {
	if p.rnd.IntN(8) > 0 {
		return v
	}
	p.disk.store(t, v)
	leaves := p.disk.generations[len(p.disk.generations)-1]
	again, err := FromLeavesPaged(v.ChunkBytes(), v.tree.paging.Paging, withoutError(slices.Values(leaves)))
	require.NoError(t, err)
	require.Equal(t, v.Commitment(), again.Commitment())
	return withIndex(again)
}

// age makes versions until even young pages have left.
func age(t *testing.T, v *Version) *Version {
	for i := range 12 {
		v = advance(t, v, Change{[]byte("one"), []byte{byte(1 + i)}})
	}
	return v
}

func TestPageOfAnotherStub(t *testing.T) {
	rnd := seeds.Rand(t)
	v := mustApply(t, mustEmpty(t, 1<<20), randomBlock(rnd, 60, 100, 0, false)...)
	var records []byte
	for l := range mustLeaves(t, v) {
		records = record.Append(records, l)
	}
	p, err := VerifyPage(v.Root(), records)
	require.NoError(t, err)
	require.Equal(t, v.Root(), p.Compact().nodes().root.Stub)

	for i := range records {
		bad := bytes.Clone(records)
		bad[i] ^= 1 << rnd.IntN(8)
		_, err := VerifyPage(v.Root(), bad)
		if i == 0 { // the height of the first record is ignored
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, ErrInvalidPage, "byte %d", i)
	}
	_, err = VerifyPage(v.Root(), records[:len(records)-1])
	require.ErrorIs(t, err, ErrInvalidPage)
	stub := v.Root()
	stub.Height++
	_, err = VerifyPage(stub, records)
	require.ErrorIs(t, err, ErrInvalidPage)
}

// TestPagesLeave: with a budget of 0, only nodes above pages stay, and a page that is read back has
// its former content.
func TestPagesLeave(t *testing.T) {
	smallPages(t, 1000)
	rnd := seeds.Rand(t)
	block := randomBlock(rnd, 20_000, 1<<30, 0, false)
	d := &disk{}
	v := mustEmpty(t, 1<<14)
	v.EnablePaging(Paging{Pages: d, Budget: func() int64 { return 0 }})
	v = advance(t, v, block...)
	before := v.Memory()
	d.store(t, v)
	v.Stored()
	v = age(t, v)
	after := v.Memory()
	require.Less(t, after.InnerNodes, before.InnerNodes/4)
	require.Less(t, after.Leaves, before.Leaves/4)
	require.NotZero(t, after.Evicted)
	require.Zero(t, d.reads.Load()-int64(after.Loaded))
	for _, c := range block[:200] {
		got, ok := mustGet(t, v, c.Key)
		require.True(t, ok)
		require.Equal(t, c.Value, got)
	}
	require.NotZero(t, d.reads.Load())
}

// TestReleasedTogetherWithinBudget: nodes that wait to be freed because many versions were released
// together count towards the tree's memory, and the next Apply frees them.
func TestReleasedTogetherWithinBudget(t *testing.T) {
	smallPages(t, 1000)
	rnd := seeds.Rand(t)
	d := &disk{}
	var budget atomic.Int64
	budget.Store(1 << 40)
	v := mustEmpty(t, 1<<14)
	v.EnablePaging(Paging{Pages: d, Budget: budget.Load})
	v = advance(t, v, randomBlock(rnd, 10_000, 1<<20, 0, false)...)
	d.store(t, v)
	v.Stored()
	alone := v.tree.resident()
	var versions []*Version
	for range 20 {
		versions = append(versions, v)
		v = mustApply(t, v, randomBlock(rnd, 200, 1<<20, 0, false)...)
	}
	held := v.Memory().HeldBytes
	require.Greater(t, held, uint64(alone)/4)
	for _, v := range versions {
		v.Release()
	}
	budget.Store(2 * alone) // for the tree itself, which grew
	v = advance(t, v, Change{[]byte("one"), []byte("1")})
	m := v.Memory()
	require.LessOrEqual(t, int64(m.HeldBytes)+v.tree.resident(), budget.Load()*51/50, "of %d; a node is as large as the mean", held)
	require.Zero(t, m.Evicted, "freeing unused nodes was enough")
	require.LessOrEqual(t, v.Reclaimed().Freed, maxExcess)

	budget.Store(0) // pages leave too
	v = age(t, v)
	require.NotZero(t, v.Memory().Evicted)
	v.Release()
}

// TestBrokenPages: a page that cannot be read is an error, never an absent key, and has no effect
// later.
func TestBrokenPages(t *testing.T) {
	smallPages(t, 500)
	rnd := seeds.Rand(t)
	d := &disk{}
	v := mustEmpty(t, 1<<14)
	v.EnablePaging(Paging{Pages: d, Budget: func() int64 { return 0 }})
	block := randomBlock(rnd, 5_000, 1<<20, 0, false)
	v = advance(t, v, block...)
	d.store(t, v)
	v.Stored()
	v = age(t, v)
	d.broken.Store(true)
	for range scaled(20) {
		_, err := v.Apply(randomBlock(rnd, 1+rnd.IntN(600), 1<<20, 0.3, false))
		require.ErrorIs(t, err, errBroken)
		var at *PageError
		require.ErrorAs(t, err, &at)
	}
	_, err := v.Prove(block[0].Key)
	require.ErrorIs(t, err, errBroken)
	d.broken.Store(false)
	want := mustApply(t, mustEmpty(t, 1<<14), block...)
	want = age(t, want)
	next := randomBlock(rnd, 300, 1<<20, 0.3, false)
	v, want = advance(t, v, next...), advance(t, want, next...)
	require.Equal(t, want.Commitment(), v.Commitment())
}
