package storage

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar/record"
)

// merged joins records, newest first, in a random grouping.
func merged(t *testing.T, rng *rand.Rand, records [][]byte) []byte {
	t.Helper()
	for len(records) > 1 {
		from := rng.IntN(len(records) - 1)
		to := from + 2 + rng.IntN(len(records)-from-1)
		part := slices.Clone(records[from:to])
		newestFirst := rng.IntN(2) == 0
		if !newestFirst {
			slices.Reverse(part)
		}
		m, err := leafMerger.Merge(nil, part[0])
		require.NoError(t, err)
		for _, operand := range part[1:] {
			if newestFirst {
				require.NoError(t, m.MergeOlder(operand))
			} else {
				require.NoError(t, m.MergeNewer(operand))
			}
		}
		result, closer, err := m.Finish(rng.IntN(2) == 0)
		require.NoError(t, err)
		joined := bytes.Clone(result)
		require.NoError(t, closer.Close())
		records = slices.Replace(slices.Clone(records), from, to, joined)
	}
	return records[0]
}

// TestMergerIsAssociative: the newest height and the newest value win, in whatever order records
// are joined. A record without bytes stays empty: no join hides damage.
func TestMergerIsAssociative(t *testing.T) {
	for seed := range uint64(500) {
		rng := newRNG(seed)
		var records [][]byte
		height, value, empty := -1, "", false
		for i := range 1 + rng.IntN(7) {
			rec := []byte{byte(rng.IntN(3))}
			if rng.IntN(2) == 0 {
				rec = fmt.Appendf(rec, "value %d", i)
				if rng.IntN(2) == 0 {
					rec[0] = heightBelow
				}
			}
			if rng.IntN(40) == 0 {
				rec, empty = nil, true
			}
			records = append(records, rec)
			if len(rec) > 0 && height < 0 && rec[0] != heightBelow {
				height = int(rec[0])
			}
			if len(rec) > 1 && value == "" {
				value = string(rec[1:])
			}
		}
		joined := merged(t, rng, records)
		got, gotHeight, err := splitLeaf(nil, joined)
		if empty || value == "" {
			require.ErrorIs(t, err, errLeafForm, seed)
			continue
		}
		require.NoError(t, err, seed)
		require.Equal(t, value, string(got), seed)
		require.Equal(t, max(height, 0), int(gotHeight), seed)
	}
}

func FuzzMerger(f *testing.F) {
	f.Add([]byte{}, []byte{1}, []byte{255, 2})
	f.Add([]byte{3}, []byte{255, 7, 7}, []byte{1, 2})
	f.Fuzz(func(t *testing.T, a, b, c []byte) {
		want := merged(t, newRNG(0), [][]byte{a, b, c})
		for seed := range uint64(8) {
			require.True(t, bytes.Equal(want, merged(t, newRNG(seed), [][]byte{a, b, c})))
		}
		_, _, _ = splitLeaf(nil, want)
	})
}

// TestOperandsEverywhere: operands over leaves of a restore, in a pin, across compactions and
// restarts: reads equal the model.
func TestOperandsEverywhere(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rng, fs := newRNG(seed), vfs.NewMem()
			_, first := randomHistory(rng, 30)
			m := first[30]
			s := openZone(t, fs)
			r, err := s.BeginRestore(nil)
			require.NoError(t, err)
			runs := testRuns(m, 5)
			addRuns(t, r, runs, idsOf(runs)...)
			require.NoError(t, r.Commit(m.meta))
			pinned := map[int64]model{}
			for height := m.meta.Height + 1; height <= 80; height++ {
				b := randomBlock(rng, m, height)
				if height%16 == 0 {
					pinWith(&b, withPin(""))
				}
				m = m.apply(b)
				if height%16 == 0 {
					pinned[height] = m
				}
				write(t, s, b)
				m.requireIn(t, s)
				kept := s.Kept(height)
				for range 10 {
					key := fmt.Sprintf("%0*d", 1+rng.IntN(3), rng.IntN(50))
					value, ok, err := kept.Get([]byte(key))
					require.NoError(t, err)
					want, is := m.leaves[key]
					require.Equal(t, is, ok)
					require.Equal(t, want, string(value))
				}
				kept.Release()
				switch rng.IntN(12) {
				case 0:
					require.NoError(t, s.Compact(t.Context(), nil))
					m.requireIn(t, s)
				case 1:
					require.NoError(t, s.Close())
					s = openZone(t, fs)
					m.requireIn(t, s)
				}
			}
			for height, m := range pinned {
				require.Equal(t, m.records(nil, nil), pinRecords(t, s, height))
			}
			require.NoError(t, s.Close())
			require.NoError(t, RollbackToPin("zone", 48, testOptions(fs)))
			s = openZone(t, fs)
			pinned[48].requireIn(t, s)
			require.NoError(t, s.Compact(t.Context(), nil))
			pinned[48].requireIn(t, s)
		})
	}
}

// TestHeightsAloneWriteNoValues: changes of only the height rewrite no values.
func TestHeightsAloneWriteNoValues(t *testing.T) {
	s := openZone(t, vfs.NewMem())
	first := Block{Meta: testMeta(1)}
	var heights []keyHeight
	rng := newRNG(1)
	for i := range 200 {
		key := fmt.Appendf(nil, "%04d", i)
		first.Puts = append(first.Puts, record.Leaf{Key: key, Value: randomBytes(rng, 1000)})
		heights = append(heights, keyHeight{key, uint8(1 + i%20)})
	}
	write(t, s, first)
	flushed := func() (sum uint64) {
		for _, l := range s.db.Metrics().Levels {
			sum += l.TableBytesFlushed
		}
		return sum
	}
	before := flushed()
	require.Greater(t, before, uint64(200*1000))
	write(t, s, Block{Meta: testMeta(2), Owner: &owner{heights: each(heights...)}})
	require.Less(t, flushed()-before, uint64(200*20))
	emptyModel().apply(first).apply(Block{Meta: testMeta(2), Owner: &owner{heights: each(heights...)}}).requireIn(t, s)
}

// TestMalformedLeaves: a height without a leaf, and a record without bytes, affect only readers of
// that key: compactions do not stop.
func TestMalformedLeaves(t *testing.T) {
	for name, damage := range map[string]func(*pebble.DB) error{
		"a height alone": func(db *pebble.DB) error { return db.Merge([]byte("kb"), []byte{3}, pebble.NoSync) },
		"a height over a deletion": func(db *pebble.DB) error {
			return errors.Join(db.Delete([]byte("kb"), pebble.NoSync), db.Merge([]byte("kb"), []byte{3}, pebble.NoSync))
		},
		"no bytes":               func(db *pebble.DB) error { return db.Set([]byte("kb"), nil, pebble.NoSync) },
		"an operand of no bytes": func(db *pebble.DB) error { return db.Merge([]byte("ka"), nil, pebble.NoSync) },
	} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewMem()
			opts := testOptions(fs)
			opts.Generations = true
			s, err := Open("zone", opts)
			require.NoError(t, err)
			write(t, s, Block{Meta: testMeta(1), Puts: []record.Leaf{{Key: []byte("a"), Value: []byte("1")}, {Key: []byte("c"), Value: []byte("3")}}})
			require.NoError(t, damage(s.db))
			write(t, s, Block{Meta: testMeta(2), Pin: true})
			for range 2 {
				var last error
				for _, err := range s.Scan() {
					last = err
				}
				require.ErrorIs(t, last, ErrCorrupt)
				require.ErrorIs(t, s.Page(nil, nil, 1<<30, func([]byte) bool { return true }), ErrCorrupt)
				require.NoError(t, s.Page([]byte("c"), nil, 5, func([]byte) bool { return true }))
				kept := s.Kept(2)
				failed := 0
				for _, key := range []string{"a", "b"} {
					if _, _, err := kept.Get([]byte(key)); err != nil {
						require.ErrorIs(t, err, ErrCorrupt)
						failed++
					}
				}
				require.Equal(t, 1, failed)
				kept.Release()
				pin, err := s.OpenPin(2)
				require.NoError(t, err)
				_, err = pin.Range(nil, nil, 1<<30)
				require.ErrorIs(t, err, ErrCorrupt)
				require.NoError(t, pin.Close())
				require.NoError(t, s.Compact(t.Context(), nil))
			}
			require.NoError(t, s.Close())
		})
	}
}
