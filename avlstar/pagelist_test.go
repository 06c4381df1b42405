package avlstar

import (
	"bytes"
	"errors"
	"iter"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// pageList is the page list of a version, kept by changes, as a store keeps it.
type pageList map[string]PageStub

// apply applies changes. Each page must occur once.
func (o pageList) apply(t require.TestingT, changes iter.Seq[PageStub]) {
	seen := map[string]bool{}
	for p := range changes {
		key := ""
		if p.First != nil {
			key = "k" + string(p.First)
		}
		if seen[key] {
			require.Fail(t, "a page occurs twice", "%q", key)
		}
		if seen[key] = true; p.Gone() {
			delete(o, key)
		} else {
			p.First = slices.Clone(p.First)
			o[key] = p
		}
	}
}

// pages yields the pages in key order, and then err unless it is nil.
func (o pageList) pages(err error) iter.Seq2[PageStub, error] {
	return func(yield func(PageStub, error) bool) {
		for _, key := range slices.Sorted(maps.Keys(o)) {
			if !yield(o[key], nil) {
				return
			}
		}
		if err != nil {
			yield(PageStub{}, err)
		}
	}
}

func pageListOf(t require.TestingT, changes iter.Seq[PageStub]) pageList {
	o := pageList{}
	o.apply(t, changes)
	return o
}

// follow moves the page list from base to v and returns it. Unless all changes are exact, it fails.
func (o pageList) follow(t require.TestingT, v, base *Version) pageList {
	if !v.HasPageList() {
		return pageList{}
	}
	if !base.HasPageList() {
		base, o = nil, pageList{}
	}
	o.apply(t, v.PageList(base))
	if all := pageListOf(t, v.PageList(nil)); !maps.EqualFunc(all, o, func(a, b PageStub) bool {
		return bytes.Equal(a.First, b.First) && a.Boundary == b.Boundary && a.Stub == b.Stub
	}) {
		require.Equal(t, all, o)
	}
	return o
}

// TestPageList: changes of random blocks keep a page list, whose tree is that of the version: in
// memory, or paged with almost no memory.
func TestPageList(t *testing.T) {
	usual := tune
	t.Cleanup(func() { tune = usual })
	rnd := seeds.Rand(t)
	rebuilt, grown, shrunk := 0, 0, 0
	for k := range scaled(40) {
		tune.pageBytes = []uint64{60, 200, 500, 2000}[rnd.IntN(4)]
		keys := 10 << rnd.IntN(8)
		v := mustApply(t, mustEmpty(t, 1+rnd.Uint64N(1<<rnd.IntN(15))), randomBlock(rnd, keys, keys, 0, false)...)
		paging := pagingStory{disk: &disk{}, rnd: rnd}
		if k%2 == 0 {
			paging.enable(v)
			paging.after(t, v)
		}
		o := pageList{}
		if v.HasPageList() {
			o = pageListOf(t, v.PageList(nil))
		}
		for range 40 {
			base := v
			deletes := []float64{0, 0.1, 0.5, 0.9}[rnd.IntN(4)]
			v = mustApply(t, v, randomBlock(rnd, 1+rnd.IntN(1+keys/(1+rnd.IntN(10))), keys, deletes, false)...)
			was := len(o)
			o = o.follow(t, v, base)
			if grown, shrunk = grown+max(len(o)-was, 0), shrunk+max(was-len(o), 0); k%2 == 0 {
				paging.after(t, v)
			}
			base.Release()
			if len(o) > 0 && rnd.IntN(4) == 0 {
				requirePageList(t, v, o)
				rebuilt++
			}
		}
		v.Release()
	}
	require.Positive(t, rebuilt)
	require.Positive(t, grown)
	require.Positive(t, shrunk)
}

// requirePageList rebuilds v from its page list and compares all of it.
func requirePageList(t require.TestingT, v *Version, o pageList) {
	d := &disk{}
	d.store(t, v)
	again, err := FromPageList(v.ChunkBytes(), v.Len(), Paging{Pages: d, Budget: func() int64 { return 0 }}, o.pages(nil))
	require.NoError(t, err)
	defer again.Release()
	require.Equal(t, v.Commitment(), again.Commitment())
	require.Equal(t, v.Len(), again.Len())
	require.Zero(t, d.reads.Load(), "a tree is rebuilt without reading pages")
	require.Equal(t, o, pageListOf(t, again.PageList(nil)))
	fromLeaves, err := FromLeavesPaged(v.ChunkBytes(), Paging{Pages: d, Budget: func() int64 { return 0 }},
		withoutError(slices.Values(d.generations[0])))
	require.NoError(t, err)
	defer fromLeaves.Release()
	require.Equal(t, fromLeaves.Memory().InnerNodes, again.Memory().InnerNodes)
	require.Equal(t, slices.Collect(mustLeaves(t, v)), slices.Collect(mustLeaves(t, again)))
	requireMemory(t, &Partial{again})
}

// TestLongPageList: a list that is joined in several blocks gives the tree that its leaves give.
// With one wrong page anywhere, it is refused, or gives another tree.
func TestLongPageList(t *testing.T) {
	smallPages(t, 60)
	rnd := seeds.Rand(t)
	longest := 0
	for i := range scaled(12) {
		keys := 1 + rnd.IntN(6*placedBlock)
		if i == 0 {
			keys = 8 * placedBlock
		}
		v := mustApply(t, mustEmpty(t, 1<<12), randomBlock(rnd, keys, 4*keys, 0, false)...)
		if !v.HasPageList() {
			v.Release()
			continue
		}
		o := pageListOf(t, v.PageList(nil))
		longest = max(longest, len(o))
		requirePageList(t, v, o)
		names := slices.Sorted(maps.Keys(o))
		for range 20 {
			bad, key := maps.Clone(o), names[1+rnd.IntN(len(names)-1)]
			p := bad[key]
			switch rnd.IntN(3) {
			case 0:
				p.Boundary++
			case 1:
				p.Hash[rnd.IntN(32)] ^= 1
			case 2:
				p.First = append(slices.Clone(p.First), 0)
			}
			bad[key] = p
			again, err := FromPageList(v.ChunkBytes(), v.Len(), Paging{Pages: &disk{}}, bad.pages(nil))
			if err == nil {
				require.NotEqual(t, v.AppHash(), again.AppHash())
				again.Release()
			}
		}
		v.Release()
	}
	require.Greater(t, longest, 2*placedBlock)
}

// TestPageListRefused: what is not a page list is refused, and never builds the state.
func TestPageListRefused(t *testing.T) {
	smallPages(t, 300)
	rnd := seeds.Rand(t)
	v := mustApply(t, mustEmpty(t, 1<<12), randomBlock(rnd, 500, 1000, 0, false)...)
	o := pageListOf(t, v.PageList(nil))
	build := func(o pageList, err error) (*Version, error) {
		return FromPageList(v.ChunkBytes(), v.Len(), Paging{Pages: &disk{}}, o.pages(err))
	}
	again, err := build(o, nil)
	require.NoError(t, err)
	require.Equal(t, v.AppHash(), again.AppHash())
	again.Release()

	failed := errors.New("the disk fails")
	_, err = build(o, failed)
	require.ErrorIs(t, err, failed)
	_, err = build(pageList{}, nil)
	require.ErrorIs(t, err, errShortPageList)
	_, err = build(pageList{"": o[""]}, nil)
	require.ErrorIs(t, err, errShortPageList)

	keys := slices.Sorted(maps.Keys(o))
	for range 200 {
		bad := maps.Clone(o)
		key := keys[rnd.IntN(len(keys))]
		p := bad[key]
		switch rnd.IntN(6) {
		case 0:
			delete(bad, key)
		case 1:
			p.Hash[rnd.IntN(32)] ^= 1
		case 2:
			p.Bytes++
		case 3:
			p.Height++
		case 4:
			if p.First == nil {
				continue // it has no boundary
			}
			p.Boundary++
		case 5:
			p.First = append(slices.Clone(p.First), 0)
		}
		if _, there := bad[key]; there {
			bad[key] = p
		}
		if again, err := build(bad, nil); err == nil {
			require.NotEqual(t, v.AppHash(), again.AppHash())
			again.Release()
		}
	}
}
