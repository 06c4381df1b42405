package avlstar

import (
	"bytes"
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// fakeRecords knows the keys of a version, or fewer.
type fakeRecords struct {
	v        *Version
	knows    func(key []byte) bool
	err      error
	reads    atomic.Int64
	released atomic.Int64
}

func (r *fakeRecords) Record(s Subtree, key []byte) ([]byte, bool, error) {
	r.reads.Add(1)
	if r.err != nil {
		return nil, false, r.err
	}
	if !r.knows(key) {
		return nil, false, nil
	}
	return r.v.Get(key)
}

func (r *fakeRecords) Release() { r.released.Add(1) }

// pagedPair returns a tree in memory, and the same tree with only the nodes above pages in memory.
func pagedPair(t *testing.T) (full, paged *Version, d *disk, keys [][]byte) {
	smallPages(t, 500)
	block := randomBlock(seeds.Rand(t), 2_000, 1<<30, 0, false)
	for _, c := range block {
		keys = append(keys, c.Key)
	}
	d = &disk{}
	full = advance(t, mustEmpty(t, 1<<14), block...)
	d.store(t, full)
	paged, err := FromLeavesPaged(1<<14, Paging{Pages: d, Budget: func() int64 { return 0 }}, full.Leaves())
	require.NoError(t, err)
	return full, paged, d, keys
}

// A value is read by its key without its page. Unknown keys are looked up in the page, which also
// proves absence.
func TestByKey(t *testing.T) {
	full, v, d, keys := pagedPair(t)
	r := &fakeRecords{v: full, knows: func([]byte) bool { return true }}
	v.SetRecords(r)
	require.Panics(t, func() { v.SetRecords(r) })
	for _, key := range keys {
		want, _ := mustGet(t, full, key)
		value, ok, err := v.ByKey().View(key)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, want, value)
	}
	require.Zero(t, d.reads.Load())
	require.Positive(t, r.reads.Load())
	r.knows = func([]byte) bool { return false }
	value, ok, err := v.ByKey().Get(keys[7])
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, first(mustGet(t, full, keys[7])), value)
	_, ok, err = v.ByKey().Get([]byte("absent"))
	require.NoError(t, err)
	require.False(t, ok)
	require.EqualValues(t, 2, d.reads.Load())
	d.broken.Store(true)
	_, _, err = v.ByKey().Get([]byte("absent"))
	require.ErrorIs(t, err, errBroken, "absence is proved")
	v.Retain()
	v.Release()
	require.Zero(t, r.released.Load())
	v.Release()
	require.EqualValues(t, 1, r.released.Load())
}

func first[A, B any](a A, _ B) A { return a }

// If a record cannot be read, the error names the page. Reads that need no record do not ask for
// one.
func TestByKeyFailsWhereRecordsDo(t *testing.T) {
	full, v, _, keys := pagedPair(t)
	defer v.Release()
	r := &fakeRecords{v: full, err: errors.New("damaged")}
	v.SetRecords(r)
	_, _, err := v.ByKey().View(keys[0])
	require.ErrorIs(t, err, r.err)
	var at *PageError
	require.ErrorAs(t, err, &at)
	_, ok, err := v.Get(keys[0])
	require.NoError(t, err)
	require.True(t, ok)
	r.reads.Store(0)
	next := mustApply(t, v, Change{keys[0], []byte("in memory")})
	defer next.Release()
	value, ok, err := next.ByKey().Get(keys[0]) // next has no records
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "in memory", string(value))
	empty := mustEmpty(t, 1)
	empty.SetRecords(&fakeRecords{err: r.err})
	_, ok, err = empty.ByKey().Get(keys[0])
	require.NoError(t, err)
	require.False(t, ok)
	require.Zero(t, r.reads.Load())
}

// Stubs from a key on are the stubs to which it and the keys after it lead, each once.
func TestStubs(t *testing.T) {
	full, v, d, keys := pagedPair(t)
	defer v.Release()
	all := slices.Collect(v.Stubs(nil))
	require.Greater(t, len(all), 20)
	sum := uint64(0)
	for i, s := range all {
		require.Equal(t, i > 0, s.First != nil)
		if i > 0 {
			require.LessOrEqual(t, bytes.Compare(all[i-1].After, s.First), 0)
		}
		page, err := d.Page(s)
		require.NoError(t, err)
		sum += uint64(len(page.data))
	}
	require.Nil(t, all[len(all)-1].After)
	require.Equal(t, full.Root().Bytes, sum, "nothing else is in memory")
	for _, key := range keys[:100] {
		from := slices.IndexFunc(all, func(s Subtree) bool { return s.After == nil || bytes.Compare(key, s.After) < 0 })
		require.Equal(t, all[from:], slices.Collect(v.Stubs(key)))
	}
	require.Empty(t, slices.Collect(full.Stubs(nil)))
	require.Empty(t, slices.Collect(mustEmpty(t, 1).Stubs(nil)))
}
