package rowtable

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/objstorage"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/stretchr/testify/require"
)

type record struct{ key, value []byte }

// testMerger is the merger of the database that the tables are for.
var testMerger = &pebble.Merger{Name: "test.merger", Merge: pebble.DefaultMerger.Merge}

func randomBytes(rng *rand.Rand, n int) []byte {
	b := make([]byte, 0, n+7)
	for len(b) < n {
		b = binary.BigEndian.AppendUint64(b, rng.Uint64())
	}
	return b[:n]
}

// randomRecords returns records whose keys share beginnings of all lengths.
func randomRecords(rng *rand.Rand, n int) []record {
	var records []record
	for range n {
		var key []byte
		if len(records) > 0 && rng.IntN(2) == 0 {
			other := records[rng.IntN(len(records))].key
			key = append(key, other[:rng.IntN(len(other)+1)]...)
		}
		most := 40
		if rng.IntN(50) == 0 {
			most = 5000
		}
		key = append(key, randomBytes(rng, rng.IntN(most))...)
		if rng.IntN(4) == 0 {
			key = append(key, bytes.Repeat([]byte{[]byte{0, 0xff}[rng.IntN(2)]}, rng.IntN(10))...)
		}
		if len(key) == 0 {
			key = []byte{0}
		}
		size := rng.IntN(300)
		if rng.IntN(50) == 0 {
			size = rng.IntN(100_000)
		}
		records = append(records, record{key, randomBytes(rng, size)})
	}
	slices.SortFunc(records, func(a, b record) int { return bytes.Compare(a.key, b.key) })
	return slices.CompactFunc(records, func(a, b record) bool { return bytes.Equal(a.key, b.key) })
}

// Pebble reads in our tables what was written, in any order, and every checksum is right.
func TestTablesArePebbles(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			records := randomRecords(rng, 1+rng.IntN(3000))
			var file bytes.Buffer
			w := New(&file, 7, testMerger.Name)
			for _, r := range records {
				cut := rng.IntN(len(r.value) + 1)
				require.NoError(t, w.Add(r.key, r.value[:cut], r.value[cut:]))
			}
			require.ErrorIs(t, w.Add(records[len(records)-1].key, nil, nil), ErrOrder)
			require.ErrorIs(t, w.Add(records[rng.IntN(len(records))].key, nil, nil), ErrOrder)
			require.Equal(t, records[len(records)-1].key, w.LastKey())
			require.NoError(t, w.Finish())
			w.Recycle()
			requireTable(t, file.Bytes(), 7, records)
		})
	}
}

// requireTable reads a table with Pebble: checksums, properties, and the records backwards.
func requireTable(t *testing.T, b []byte, prefix byte, records []record) {
	t.Helper()
	obj := &objstorage.MemObj{}
	require.NoError(t, obj.Write(b))
	require.NoError(t, obj.Finish())
	_, err := sstable.NewReader(t.Context(), obj, sstable.ReaderOptions{})
	require.ErrorContains(t, err, "unknown merger "+testMerger.Name)
	reader, err := sstable.NewReader(t.Context(), obj, sstable.ReaderOptions{Merger: testMerger})
	require.NoError(t, err)
	require.NoError(t, reader.ValidateBlockChecksums())
	properties, err := reader.ReadPropertiesBlock(t.Context(), nil)
	require.NoError(t, err)
	require.EqualValues(t, len(records), properties.NumEntries)
	require.Equal(t, testMerger.Name, properties.MergerName)
	require.Positive(t, properties.NumDataBlocks)
	require.Less(t, properties.DataSize, uint64(len(b)))
	format, err := reader.TableFormat()
	require.NoError(t, err)
	require.Equal(t, sstable.TableFormatPebblev1, format)
	it, err := reader.NewIter(sstable.NoTransforms, nil, nil, sstable.AssertNoBlobHandles)
	require.NoError(t, err)
	kv := it.Last()
	for _, r := range slices.Backward(records) {
		require.NotNil(t, kv)
		require.Equal(t, string(append([]byte{prefix}, r.key...)), string(kv.K.UserKey))
		value, _, err := kv.Value(nil)
		require.NoError(t, err)
		require.Equal(t, string(r.value), string(value))
		kv = it.Prev()
	}
	require.Nil(t, kv)
	require.NoError(t, it.Close())
	require.NoError(t, reader.Close())
}
