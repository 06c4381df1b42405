package blocks

// The tests of this file are those of github.com/cometbft/cometbft-db v0.14.1 (backend_test.go,
// db_test.go, util_test.go, prefixdb_test.go and the helpers of common_test.go; Apache License
// 2.0), which lie in test files there and cannot be imported. They are rewritten for a zone; two
// things differ: compacting an empty range is no error here, and batches must be atomic.

import (
	"encoding/binary"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	dbm "github.com/cometbft/cometbft-db"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/storage/sgc"
)

func openZone(t testing.TB, fs vfs.FS, o Options) *Zone {
	t.Helper()
	o.FS = fs
	z, err := Open("zone", o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, z.Close()) })
	return z
}

// eachSetup runs test over an empty database: alone, with a cache, with neighbours on both sides.
func eachSetup(t *testing.T, test func(t *testing.T, db dbm.DB)) {
	t.Run("alone", func(t *testing.T) {
		test(t, openZone(t, vfs.NewMem(), Options{}).DB("test"))
	})
	t.Run("cached", func(t *testing.T) {
		test(t, openZone(t, vfs.NewMem(), Options{Cache: sgc.New(1 << 20)}).DB("test"))
	})
	t.Run("among neighbours", func(t *testing.T) {
		z := openZone(t, vfs.NewMem(), Options{Cache: sgc.New(1 << 20)})
		for _, id := range []string{"a", "tess", "tesu", "tes", "test2", "z"} {
			for _, key := range []string{"a", "b", "t", "test", "\x00", "\xff\xff"} {
				require.NoError(t, z.DB(id).Set([]byte(key), []byte{20}))
			}
		}
		test(t, z.DB("test"))
	})
}

// From backend_test.go, testBackendGetSetDelete.
func TestGetSetDelete(t *testing.T) {
	eachSetup(t, func(t *testing.T, db dbm.DB) {
		wantValue := func(key string, want []byte) {
			t.Helper()
			for range 2 { // the second may come from the cache
				value, err := db.Get([]byte(key))
				require.NoError(t, err)
				require.Equal(t, want, value)
				ok, err := db.Has([]byte(key))
				require.NoError(t, err)
				require.Equal(t, want != nil, ok)
			}
		}
		wantValue("a", nil)
		require.NoError(t, db.Set([]byte("a"), []byte{1}))
		wantValue("a", []byte{1})
		require.NoError(t, db.SetSync([]byte("b"), []byte{2}))
		wantValue("b", []byte{2})
		require.NoError(t, db.Set([]byte("b"), []byte{3}))
		wantValue("b", []byte{3})

		require.NoError(t, db.Delete([]byte("x")))
		require.NoError(t, db.DeleteSync([]byte("x")))
		require.NoError(t, db.Delete([]byte("a")))
		wantValue("a", nil)
		require.NoError(t, db.DeleteSync([]byte("b")))
		wantValue("b", nil)

		for _, empty := range [][]byte{nil, {}} {
			_, err := db.Get(empty)
			require.ErrorIs(t, err, ErrKeyEmpty)
			_, err = db.Has(empty)
			require.ErrorIs(t, err, ErrKeyEmpty)
			require.ErrorIs(t, db.Set(empty, []byte{1}), ErrKeyEmpty)
			require.ErrorIs(t, db.SetSync(empty, []byte{1}), ErrKeyEmpty)
			require.ErrorIs(t, db.Delete(empty), ErrKeyEmpty)
			require.ErrorIs(t, db.DeleteSync(empty), ErrKeyEmpty)
		}
		require.ErrorIs(t, db.Set([]byte("x"), nil), ErrValueNil)
		require.ErrorIs(t, db.SetSync([]byte("x"), nil), ErrValueNil)
		require.NoError(t, db.Set([]byte("x"), []byte{}))
		require.NoError(t, db.SetSync([]byte("x"), []byte{}))
		wantValue("x", []byte{})

		require.NoError(t, db.Compact(nil, nil))
		require.NoError(t, db.Set([]byte("y"), []byte{}))
		require.NoError(t, db.Compact(nil, nil))
		require.NoError(t, db.Compact([]byte("x"), []byte("x")))
		wantValue("x", []byte{})
		wantValue("y", []byte{})
		require.NotEmpty(t, db.Stats())
		require.NoError(t, db.Close())
		wantValue("x", []byte{}) // closing the database leaves the zone open
	})
}

func int64Bytes(i int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(i)) }

// From backend_test.go, testDBIterator: a database of 0 to 9 without 6. A bound of -1 is nil.
func TestIterator(t *testing.T) {
	eachSetup(t, func(t *testing.T, db dbm.DB) {
		bound := func(i int64) []byte {
			if i < 0 {
				return nil
			}
			return int64Bytes(i)
		}
		check := func(reverse bool, start, end int64, want ...int64) {
			t.Helper()
			make := db.Iterator
			if reverse {
				make = db.ReverseIterator
			}
			it, err := make(bound(start), bound(end))
			require.NoError(t, err)
			requireDomain(t, it, bound(start), bound(end))
			var got []int64
			for ; it.Valid(); it.Next() {
				got = append(got, int64(binary.BigEndian.Uint64(it.Key())))
				require.Equal(t, []byte{}, it.Value())
			}
			require.NoError(t, it.Error())
			requireInvalid(t, it)
			require.NoError(t, it.Close())
			require.NoError(t, it.Close())
			require.Equal(t, want, got)
		}
		check(false, -1, -1)
		check(true, -1, -1)
		for i := range int64(10) {
			if i != 6 {
				require.NoError(t, db.Set(int64Bytes(i), []byte{}))
			}
		}
		for _, blank := range [][2][]byte{{{}, nil}, {nil, {}}} {
			_, err := db.Iterator(blank[0], blank[1])
			require.ErrorIs(t, err, ErrKeyEmpty)
			_, err = db.ReverseIterator(blank[0], blank[1])
			require.ErrorIs(t, err, ErrKeyEmpty)
		}
		const forward, reverse = false, true
		check(forward, -1, -1, 0, 1, 2, 3, 4, 5, 7, 8, 9)
		check(reverse, -1, -1, 9, 8, 7, 5, 4, 3, 2, 1, 0)
		check(forward, -1, 0)
		check(reverse, 10, -1)
		check(forward, 0, -1, 0, 1, 2, 3, 4, 5, 7, 8, 9)
		check(forward, 1, -1, 1, 2, 3, 4, 5, 7, 8, 9)
		check(reverse, -1, 10, 9, 8, 7, 5, 4, 3, 2, 1, 0)
		check(reverse, -1, 9, 8, 7, 5, 4, 3, 2, 1, 0)
		check(reverse, -1, 8, 7, 5, 4, 3, 2, 1, 0)
		check(forward, 5, 6, 5)
		check(forward, 5, 7, 5)
		check(forward, 5, 8, 5, 7)
		check(forward, 6, 7)
		check(forward, 6, 8, 7)
		check(forward, 7, 8, 7)
		check(reverse, 4, 5, 4)
		check(reverse, 4, 6, 5, 4)
		check(reverse, 4, 7, 5, 4)
		check(reverse, 5, 6, 5)
		check(reverse, 5, 7, 5)
		check(reverse, 6, 7)
		check(reverse, 6, -1, 9, 8, 7)
		check(reverse, 5, -1, 9, 8, 7, 5)
		check(reverse, 8, 9, 8)
		check(reverse, 2, 4, 3, 2)
		check(reverse, 4, 2)
		check(forward, 4, 2)
		check(forward, 4, 4)
	})
}

func requireDomain(t *testing.T, it dbm.Iterator, start, end []byte) {
	t.Helper()
	s, e := it.Domain()
	require.Equal(t, start, s)
	require.Equal(t, end, e)
}

func requireInvalid(t *testing.T, it dbm.Iterator) {
	t.Helper()
	require.False(t, it.Valid())
	require.Panics(t, it.Next)
	require.Panics(t, func() { it.Key() })
	require.Panics(t, func() { it.Value() })
	require.False(t, it.Valid())
}

// content reads everything, forwards and backwards.
func content(t testing.TB, db dbm.DB) map[string]string {
	t.Helper()
	got, back := map[string]string{}, map[string]string{}
	it, err := db.Iterator(nil, nil)
	require.NoError(t, err)
	for ; it.Valid(); it.Next() {
		got[string(it.Key())] = string(it.Value())
	}
	require.NoError(t, it.Error())
	require.NoError(t, it.Close())
	it, err = db.ReverseIterator(nil, nil)
	require.NoError(t, err)
	for ; it.Valid(); it.Next() {
		back[string(it.Key())] = string(it.Value())
	}
	require.NoError(t, it.Error())
	require.NoError(t, it.Close())
	require.Equal(t, got, back)
	return got
}

// From backend_test.go, testDBBatch.
func TestBatch(t *testing.T) {
	eachSetup(t, func(t *testing.T, db dbm.DB) {
		requireClosed := func(b dbm.Batch) {
			t.Helper()
			require.ErrorIs(t, b.Set([]byte("a"), []byte{9}), ErrBatchClosed)
			require.ErrorIs(t, b.Delete([]byte("a")), ErrBatchClosed)
			require.ErrorIs(t, b.Write(), ErrBatchClosed)
			require.ErrorIs(t, b.WriteSync(), ErrBatchClosed)
			require.NoError(t, b.Close())
			require.NoError(t, b.Close())
		}
		b := db.NewBatch()
		require.NoError(t, b.Set([]byte("a"), []byte{1}))
		require.NoError(t, b.Set([]byte("b"), []byte{2}))
		require.NoError(t, b.Set([]byte("c"), []byte{3}))
		require.Empty(t, content(t, db))
		require.NoError(t, b.Write())
		require.Equal(t, map[string]string{"a": "\x01", "b": "\x02", "c": "\x03"}, content(t, db))
		requireClosed(b)

		b = db.NewBatch()
		require.NoError(t, b.Delete([]byte("a")))
		require.NoError(t, b.Set([]byte("a"), []byte{1}))
		require.NoError(t, b.Set([]byte("b"), []byte{1}))
		require.NoError(t, b.Set([]byte("b"), []byte{2}))
		require.NoError(t, b.Set([]byte("c"), []byte{3}))
		require.NoError(t, b.Delete([]byte("c")))
		require.NoError(t, b.WriteSync())
		requireClosed(b)
		want := map[string]string{"a": "\x01", "b": "\x02"}
		require.Equal(t, want, content(t, db))

		b = db.NewBatch()
		for _, empty := range [][]byte{nil, {}} {
			require.ErrorIs(t, b.Set(empty, []byte{1}), ErrKeyEmpty)
			require.ErrorIs(t, b.Delete(empty), ErrKeyEmpty)
		}
		require.ErrorIs(t, b.Set([]byte("a"), nil), ErrValueNil)
		require.NoError(t, b.Close())
		requireClosed(b)

		b = db.NewBatch()
		require.NoError(t, b.Write())
		require.Equal(t, want, content(t, db))
		b = db.NewBatch()
		require.NoError(t, b.Set([]byte("a"), []byte{9}))
		require.NoError(t, b.Close())
		requireClosed(b)
		require.Equal(t, want, content(t, db))
	})
}

// From db_test.go: iterators over no, one, two and many keys, and beyond the last.
func TestIteratorEnds(t *testing.T) {
	eachSetup(t, func(t *testing.T, db dbm.DB) {
		requireLength := func(start []byte, want int) {
			t.Helper()
			it, err := db.Iterator(start, nil)
			require.NoError(t, err)
			defer it.Close()
			for range want {
				require.True(t, it.Valid())
				it.Next()
			}
			requireInvalid(t, it)
		}
		requireLength(nil, 0)
		requireLength([]byte("1"), 0)
		require.NoError(t, db.SetSync([]byte("1"), []byte("value_1")))
		requireLength(nil, 1)
		requireLength([]byte("2"), 0)
		require.NoError(t, db.SetSync([]byte("2"), []byte("value_1")))
		requireLength(nil, 2)
		for i := range 100 {
			require.NoError(t, db.Set([]byte{byte(i)}, []byte{5}))
		}
		requireLength(nil, 100)
		it, err := db.Iterator(nil, nil)
		require.NoError(t, err)
		defer it.Close()
		for ; it.Valid(); it.Next() {
			value, err := db.Get(it.Key())
			require.NoError(t, err)
			require.Equal(t, it.Value(), value)
		}
	})
}

// From util_test.go and prefixdb_test.go: the helpers of cometbft-db over a database of ours.
func TestPrefixes(t *testing.T) {
	eachSetup(t, func(t *testing.T, db dbm.DB) {
		it, err := dbm.IteratePrefix(db, []byte("2"))
		require.NoError(t, err)
		requireInvalid(t, it)

		late, err := dbm.IteratePrefix(db, []byte("1"))
		require.NoError(t, err)
		for key, value := range map[string]string{
			"a/1": "value_1", "a/3": "value_3", "b/3": "value_3", "a-3": "value_3", "a.3": "value_3", "abcdefg": "value_3", "1": "value_1",
		} {
			require.NoError(t, db.SetSync([]byte(key), []byte(value)))
		}
		requireInvalid(t, late) // it sees what was there when it was made
		require.NoError(t, late.Close())

		it, err = dbm.IteratePrefix(db, []byte("a/"))
		require.NoError(t, err)
		require.Equal(t, []byte("a/1"), it.Key())
		require.Equal(t, []byte("value_1"), it.Value())
		it.Next()
		require.Equal(t, []byte("a/3"), it.Key())
		require.Equal(t, []byte("value_3"), it.Value())
		it.Next()
		requireInvalid(t, it)
		require.NoError(t, it.Close())

		under := dbm.NewPrefixDB(db, []byte("a/"))
		require.Equal(t, map[string]string{"1": "value_1", "3": "value_3"}, content(t, under))
		require.NoError(t, under.Delete([]byte("1")))
		require.Equal(t, map[string]string{"3": "value_3"}, content(t, under))
		b := under.NewBatch()
		require.NoError(t, b.Set([]byte("4"), []byte("4")))
		require.NoError(t, b.WriteSync())
		value, err := db.Get([]byte("a/4"))
		require.NoError(t, err)
		require.Equal(t, []byte("4"), value)
	})
}
