package avlstar

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// rangeDisk holds the leaves of a range, of several versions.
type rangeDisk struct {
	flaky
	r KeyRange
}

func newRangeDisk(rnd *rand.Rand, r KeyRange) *rangeDisk {
	d := &rangeDisk{flaky: flaky{disk: &disk{}}, r: r}
	d.seed.Store(rnd.Int64())
	return d
}

// store makes p the newest generation.
func (d *rangeDisk) store(t require.TestingT, p *Partial) {
	d.generations = append(d.generations, mustReplicaLeaves(t, p, d.r))
}

// mustPagedReplica makes a paged replica of r, whose leaves are then on the disk.
func mustPagedReplica(t require.TestingT, v *Version, d *rangeDisk, budget func() int64) *Partial {
	d.generations = append(d.generations, leavesOf(t, v, d.r))
	b, err := v.Boundary(d.r)
	p, err := FromRangePaged(v.Commitment(), d.r, mustDecodeMultiproof(t, b, err), Paging{Pages: d, Budget: budget},
		withoutError(slices.Values(d.generations[len(d.generations)-1])))
	require.NoError(t, err)
	require.Equal(t, v.Commitment(), p.Commitment())
	return p
}

// pagedReplica replays what a replica in memory replays.
type pagedReplica struct {
	replica
	disk    *rangeDisk
	budget  int64
	failed  int
	list    pageList
	rebuilt int // from its page list
}

func (r *pagedReplica) paged(t require.TestingT, v *Version) *Partial {
	return mustPagedReplica(t, v, r.disk, func() int64 { return r.budget })
}

// replay does what replica.replay does. Some reads fail first, and some versions are stored: the
// newest, or an older one that is still kept, as by a disk that trails.
func (r *pagedReplica) replay(t require.TestingT, v, base *Version, block []Change) {
	r.budget = []int64{0, 0, 1000, 20_000, 1 << 40}[r.rnd.IntN(5)]
	if r.rnd.IntN(3) == 0 {
		r.disk.rate.Store([]int64{100, 30, 5}[r.rnd.IntN(3)])
		after, err := r.p.Replay(r.r, mustUpdate(t, v, base, r.r, block))
		r.disk.rate.Store(0)
		if err == nil {
			after.Release()
		} else {
			require.ErrorIs(t, err, errBroken)
			require.ErrorAs(t, err, new(*PageError))
			r.failed++
		}
	}
	before := r.p
	before.Retain()
	r.replica.replay(t, v, base, block)
	r.list = r.list.follow(t, r.p.v, before.v)
	before.Release()
	if r.rnd.IntN(2) == 0 {
		p := r.p
		if i := r.rnd.IntN(len(r.kept) + 2); i < len(r.kept) {
			p = r.kept[i].p
		}
		if p.v.epoch > p.v.tree.paging.stored.Load() {
			r.disk.store(t, p)
			p.Stored()
		}
	}
}

// TestPagedReplicas replays random blocks in replicas whose ranges cover all keys, in memory and
// paged with almost no memory. Both have the root of the full tree, and the same leaves, boundary
// proofs, multiproofs and proofs.
func TestPagedReplicas(t *testing.T) {
	usual := tune
	t.Cleanup(func() { tune = usual })
	rnd := seeds.Rand(t)
	failed, evicted, loaded, empty, rebuilt := 0, uint64(0), uint64(0), 0, 0
	for range scaled(60) {
		tune.pageBytes = []uint64{60, 200, 500, 2000}[rnd.IntN(4)]
		keys := 10 << rnd.IntN(8)
		v := mustEmpty(t, 1+rnd.Uint64N(1<<rnd.IntN(15)))
		if rnd.IntN(4) > 0 {
			v = advance(t, v, randomBlock(rnd, keys, keys, 0, false)...)
		}
		ranges := randomRanges(rnd, 1+rnd.IntN(8), keys)
		var inMemory []*replica
		var paged []*pagedReplica
		for _, r := range ranges {
			inMemory = append(inMemory, &replica{r: r, p: mustReplica(t, v, r), rnd: rnd})
			p := &pagedReplica{replica: replica{r: r, rnd: rnd}, disk: newRangeDisk(rnd, r)}
			p.p = p.paged(t, v)
			p.list = pageListOf(t, p.p.PageList(nil))
			paged = append(paged, p)
		}
		deletes := 0.1
		for i := range 40 {
			if rnd.IntN(5) == 0 {
				deletes = []float64{0, 0.2, 0.5, 0.9}[rnd.IntN(4)]
			}
			block := rangeBlock(rnd, v, ranges, keys, deletes)
			next := mustApply(t, v, block...)
			for k, r := range paged {
				inMemory[k].replay(t, next, v, block)
				r.replay(t, next, v, block)
				if i%4 == 3 || rnd.IntN(8) == 0 {
					requireSameReplica(t, rnd, next, inMemory[k].p, r.p, r.r, keys)
					r.require(t, next, keys)
				}
				if len(leavesOf(t, next, r.r)) == 0 {
					empty++
				}
				if rnd.IntN(20) == 0 { // it is opened again
					r.reopen(t, next)
				}
			}
			v.Release()
			v = next
		}
		for k, r := range paged {
			requireSameReplica(t, rnd, v, inMemory[k].p, r.p, r.r, keys)
			for len(r.kept) > 0 {
				r.release(t)
			}
			requireMemory(t, r.p)
			m := r.p.Memory()
			failed, evicted, loaded, rebuilt = failed+r.failed, evicted+m.Evicted, loaded+m.Loaded, rebuilt+r.rebuilt
			r.p.Release()
			for len(inMemory[k].kept) > 0 {
				inMemory[k].release(t)
			}
			inMemory[k].p.Release()
		}
		v.Release()
	}
	require.Positive(t, failed)
	require.Positive(t, evicted)
	require.Positive(t, loaded)
	require.Positive(t, empty)
	require.Positive(t, rebuilt)
}

// reopen builds the replica again from its own data: from its page list or, if it has none, from
// its leaves.
func (r *pagedReplica) reopen(t require.TestingT, v *Version) {
	for len(r.kept) > 0 {
		r.release(t)
	}
	r.disk.store(t, r.p)
	b, err := r.p.Boundary(r.r)
	boundary := mustDecodeMultiproof(t, b, err)
	paging := r.p.v.tree.paging.Paging
	var again *Partial
	if r.p.HasPageList() && r.rnd.IntN(2) == 0 {
		again, err = FromRangePageList(r.p.Commitment(), r.r, boundary, paging, r.list.pages(nil))
		require.NoError(t, err)
		require.Equal(t, r.list, pageListOf(t, again.PageList(nil)))
		r.rebuilt++
	} else {
		again, err = FromRangePaged(r.p.Commitment(), r.r, boundary, paging, r.p.Leaves(r.r))
		require.NoError(t, err)
		r.list = pageListOf(t, again.PageList(nil))
	}
	require.Equal(t, v.Commitment(), again.Commitment())
	requireMemory(t, again)
	r.p.Release()
	r.p = again
}

// requireSameReplica compares what two replicas of r read: all of it, at its edges, and in between.
func requireSameReplica(t require.TestingT, rnd *rand.Rand, v *Version, inMemory, paged *Partial, r KeyRange, keys int) {
	require.Equal(t, v.Commitment(), paged.Commitment())
	full, err := v.Boundary(r)
	require.NoError(t, err)
	for _, p := range []*Partial{inMemory, paged} {
		boundary, err := p.Boundary(r)
		require.NoError(t, err)
		require.Equal(t, full, boundary)
	}
	require.Equal(t, mustReplicaLeaves(t, inMemory, r), mustReplicaLeaves(t, paged, r))
	var wants []Want
	for _, key := range [][]byte{r.First, r.After, randomKey(rnd, keys), randomKey(rnd, keys), nil} {
		want, wantOK, wantErr := inMemory.Get(key)
		got, gotOK, gotErr := paged.Get(key)
		require.Equal(t, want, got)
		require.Equal(t, wantOK, gotOK)
		require.Equal(t, wantErr, gotErr, "a key outside is not absent")
		want2, wantErr := inMemory.Prove(key)
		got2, gotErr := paged.Prove(key)
		require.Equal(t, wantErr, gotErr)
		require.Equal(t, want2, got2)
		if len(key) > 0 {
			wants = append(wants, Want{Key: key, Deleted: rnd.IntN(2) == 0})
		}
	}
	for _, below := range []Below{{}, {Depth: 3}, {Partly: true}} {
		for _, wants := range [][]Want{wants, {{Key: r.First, Range: true, After: r.After}}} {
			if len(wants) > 0 && wants[0].Range && len(r.After) == 0 {
				wants = []Want{{Key: r.First, Range: true}}
			}
			want, wantErr := inMemory.Multiproof(wants, below)
			got, gotErr := paged.Multiproof(wants, below)
			require.Equal(t, wantErr, gotErr)
			require.Equal(t, want, got)
		}
	}
	upper, err := inMemory.Upper(4)
	require.NoError(t, err)
	got, err := paged.Upper(4)
	require.NoError(t, err)
	require.Equal(t, upper, got)
}

// pagedState returns a tree, and a range of it with all its pages on a disk.
func pagedState(t *testing.T, rnd *rand.Rand) (*Version, KeyRange, *rangeDisk) {
	smallPages(t, 300)
	var block []Change
	for i := range 2000 {
		block = append(block, Change{fmt.Appendf(nil, "k%04d", i), []byte("value")})
	}
	r := KeyRange{First: []byte("k0500"), After: []byte("k1500")}
	return mustApply(t, mustEmpty(t, 1<<12), block...), r, newRangeDisk(rnd, r)
}

// TestPagedReplayFails: a replay that fails, whatever the reason, leaves the version as it was.
func TestPagedReplayFails(t *testing.T) {
	rnd := seeds.Rand(t)
	v, r, d := pagedState(t, rnd)
	block := []Change{{Key: []byte("k0499")}, {Key: []byte("k0500")}, {[]byte("k0777"), []byte("y")}, {Key: []byte("k1499")}, {Key: []byte("k1500")}}
	next := mustApply(t, v, block...)
	right := mustUpdate(t, next, v, r, block)
	boundary, err := v.Boundary(r)
	require.NoError(t, err)
	for name, bad := range map[string]func(u *Update) error{
		"another value":         func(u *Update) error { u.Changes[1].Value = []byte("lie"); return ErrOtherState },
		"a change less":         func(u *Update) error { u.Changes = u.Changes[1:]; return ErrOtherState },
		"another root":          func(u *Update) error { u.To.Root.Hash[0]++; return ErrOtherState },
		"old boundary proof":    func(u *Update) error { u.Boundary = boundary; return ErrOtherState },
		"a place below a leaf":  func(u *Update) error { u.Moved = []MovedNode{{1 << 40, 3}}; return ErrOtherState },
		"pages cannot be read":  func(*Update) error { d.rate.Store(100); return errBroken },
		"no page on the disk":   func(*Update) error { d.generations = nil; return errNoPage },
		"deletions of no key":   func(u *Update) error { u.Changes = absent(r, 50_000, nil); return ErrOtherState },
		"puts of too many keys": func(u *Update) error { u.Changes = absent(r, 50_000, []byte("y")); return ErrOtherState },
	} {
		t.Run(name, func(t *testing.T) {
			p := mustPagedReplica(t, v, d, func() int64 { return 0 })
			leaves := d.generations
			u := right
			u.Changes, u.Moved = slices.Clone(right.Changes), slices.Clone(right.Moved)
			before := p.Memory()
			want := bad(&u)
			_, err := p.Replay(r, u)
			d.rate.Store(0)
			d.generations = leaves
			require.ErrorIs(t, err, want)
			require.NotErrorIs(t, err, ErrTooLarge)
			now := p.Memory()
			require.LessOrEqual(t, now.InnerNodes+now.Leaves-now.Held, before.InnerNodes+before.Leaves-before.Held, "nodes are left")
			require.Equal(t, leavesOf(t, v, r), mustReplicaLeaves(t, p, r))
			after, err := p.Replay(r, right)
			require.NoError(t, err)
			require.Equal(t, next.Commitment(), after.Commitment())
			require.Equal(t, leavesOf(t, next, r), mustReplicaLeaves(t, after, r))
			p.Release()
			requireMemory(t, after)
		})
	}
}

// absent returns changes of keys that the state does not have.
func absent(r KeyRange, n int, value []byte) (changes []UpdateChange) {
	for i := range n {
		changes = append(changes, UpdateChange{Change: Change{fmt.Appendf(bytes.Clone(r.First), "x%06d", i), value}})
	}
	return changes
}

// TestPagedRangeOnlyReplays: a tree that has pages of a range only refuses what could move other
// stubs into that range.
func TestPagedRangeOnlyReplays(t *testing.T) {
	v, r, d := pagedState(t, seeds.Rand(t))
	p := mustPagedReplica(t, v, d, func() int64 { return 0 })
	_, err := p.Apply([]Change{{[]byte("k0777"), []byte("y")}})
	require.ErrorContains(t, err, `the tree has pages of the range ["k0500", "k1500") only`)
	other := KeyRange{First: []byte("k0600"), After: r.After}
	block := []Change{{[]byte("k0777"), []byte("y")}}
	next := mustApply(t, v, block...)
	_, err = p.Replay(other, mustUpdate(t, next, v, other, block))
	require.ErrorContains(t, err, `the tree does not have pages of the range ["k0600", "k1500")`)
	_, ok := p.v.Partial()
	require.True(t, ok, "it has stubs that are not pages")
	lacking, held := p.v.Missing([]Want{{Key: []byte("k0001")}, {Key: []byte("k0777")}, {Key: []byte("k0400"), Range: true, After: []byte("k0600")}})
	require.Len(t, lacking, 2)
	require.NotEmpty(t, held)
	after, err := p.Replay(r, mustUpdate(t, next, v, r, block))
	require.NoError(t, err)
	require.Equal(t, next.Commitment(), after.Commitment())
}

// TestPagedRootWasAway: an update deletes everything outside of a page, or of a part of one, which
// is then the whole tree. Its root is in memory.
func TestPagedRootWasAway(t *testing.T) {
	rnd := seeds.Rand(t)
	v, _, _ := pagedState(t, rnd)
	all := leavesOf(t, v, KeyRange{})
	for name, kept := range map[string][]Leaf{
		"the first leaf": all[:1], "the last leaf": all[len(all)-1:], "a page": all[:7], "the end of a page": all[len(all)-3:],
	} {
		t.Run(name, func(t *testing.T) {
			d := newRangeDisk(rnd, KeyRange{})
			p := mustPagedReplica(t, v, d, func() int64 { return 0 })
			var block []Change
			for _, l := range all {
				if !slices.ContainsFunc(kept, func(k Leaf) bool { return bytes.Equal(k.Key, l.Key) }) {
					block = append(block, Change{Key: l.Key})
				}
			}
			next := mustApply(t, v, block...)
			defer next.Release()
			after, err := p.Replay(d.r, mustUpdate(t, next, v, d.r, block))
			require.NoError(t, err)
			p.Release()
			requireMemory(t, after)
			requireSameReplica(t, rnd, next, mustReplica(t, next, d.r), after, d.r, 10)
			require.NotZero(t, after.v.root)
			for _, err := range after.v.Leaves() {
				require.NoError(t, err)
			}
		})
	}
}

// TestPagedReplicaStaysWithinBudget: blocks all over a range of many times the budget leave no more
// in memory than the budget, the nodes above pages, and the last blocks.
func TestPagedReplicaStaysWithinBudget(t *testing.T) {
	rnd := seeds.Rand(t)
	smallPages(t, 1000)
	const keys = 60_000
	v := mustApply(t, mustEmpty(t, 1<<14), randomBlock(rnd, keys, 1<<30, 0, false)...)
	r := KeyRange{First: []byte{0x10}, After: []byte{0xf0}}
	d := newRangeDisk(rnd, r)
	inMemory := mustReplica(t, v, r)
	all := inMemory.v.tree.resident()
	budget := all / 4
	p := mustPagedReplica(t, v, d, func() int64 { return budget })
	for range 12 {
		block := randomBlock(rnd, 300, 1<<30, 0.3, false)
		next := mustApply(t, v, block...)
		after, err := p.Replay(r, mustUpdate(t, next, v, r, block))
		require.NoError(t, err)
		p.Release()
		p, v = after, next
		d.generations = [][]Leaf{leavesOf(t, v, r)}
		p.v.Stored()
		require.LessOrEqual(t, p.v.tree.resident(), budget*5/4, "of %d", all)
	}
	require.NotZero(t, p.Memory().Evicted)
	require.Equal(t, d.generations[0], mustReplicaLeaves(t, p, r))
}
