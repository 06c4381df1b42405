package tx

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/protowalk"
)

// allocated returns the number of bytes that f allocates.
func allocated(f func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc)
}

// in returns a field with this content.
func in(number int, content []byte) []byte {
	b := binary.AppendUvarint(nil, uint64(number)<<3|2)
	return append(binary.AppendUvarint(b, uint64(len(content))), content...)
}

// deep returns Txns nested in each other.
func deep(n int) []byte {
	b := in(13, nil)
	for range n {
		b = in(13, in(2, b))
	}
	return b
}

// Decoding takes at most a few times the bytes of a transaction, and the memory of 10,000
// operations.
func TestDecodingCostsNoMoreThanWhatCame(t *testing.T) {
	const times, operations = 4, MaxOperations * 288
	fill := func(element []byte, n int) []byte { return bytes.Repeat(element, n/len(element)) }
	const room = MaxBytes - 128
	for name, body := range map[string][]byte{
		"kinds in one operation":         in(3, fill([]byte{1<<3 | 2, 0}, room-10)),
		"kinds in each operation":        fill(in(3, fill([]byte{1<<3 | 2, 0}, 190)), room),
		"each kind in each operation":    fill(in(3, []byte{1<<3 | 2, 0, 2<<3 | 2, 0, 3<<3 | 2, 0, 4<<3 | 2, 0, 5<<3 | 2, 0, 6<<3 | 2, 0, 7<<3 | 2, 0, 8<<3 | 2, 0, 9<<3 | 2, 0}), 20*MaxOperations),
		"empty compares in one txn":      in(3, in(13, fill(in(1, nil), room-20))),
		"as many compares as may be":     in(3, in(13, fill(in(1, nil), 2*MaxOperations))),
		"txns with a compare each":       fill(in(3, in(13, in(1, nil))), 6*MaxOperations),
		"empty operations in branches":   in(3, in(13, append(fill(in(2, nil), room/2), fill(in(3, nil), room/2-20)...))),
		"txns in a txn":                  in(3, in(13, fill(in(2, in(13, nil)), room-20))),
		"a proposal in a txn":            in(3, in(13, in(2, in(20, fill(in(1, in(5, nil)), room-30))))),
		"a txn in a txn in a txn":        in(3, deep(5000)),
		"keys in one operation":          in(3, in(1, fill([]byte{1<<3 | 2, 1, 'k'}, room-20))),
		"empty operations":               fill(in(3, nil), room),
		"as many empty ones as may be":   fill(in(3, nil), 2*MaxOperations),
		"as many empty puts as may be":   fill(in(3, in(1, nil)), 4*MaxOperations),
		"accounts":                       fill(in(1, nil), room),
		"accounts that grow":             fill(in(1, make([]byte, 200)), room),
		"an unknown field in operations": in(3, fill([]byte{77 << 1, 1}, room-10)),
		"the largest value":              in(3, in(1, append(in(1, []byte("k")), in(2, make([]byte, MaxValueBytes))...))),
	} {
		t.Run(name, func(t *testing.T) {
			signed := append([]byte{marker}, in(1, body)...)
			for _, b := range [][]byte{append(signed, in(2, make([]byte, 64))...), append([]byte{marker}, body...)} {
				require.LessOrEqual(t, len(b), MaxBytes)
				var err error
				spent := allocated(func() { _, err = Decode(b, "chain") })
				require.Error(t, err)
				require.LessOrEqual(t, spent, times*len(b)+operations, "for %d bytes", len(b))
			}
		})
	}
}

func TestDecodeResult(t *testing.T) {
	result := Result{Results: []OperationResult{{Found: true, Value: []byte("v")}, {}}}
	b, err := result.Marshal()
	require.NoError(t, err)
	again, err := DecodeResult(b)
	require.NoError(t, err)
	require.Equal(t, &result, again)
	_, err = DecodeResult(b[:3])
	require.ErrorIs(t, err, protowalk.ErrMalformed)
	_, err = DecodeResult(in(1, []byte{0x80}))
	require.Error(t, err)

	inner := []OperationResult{{Deleted: 3}, {Found: true, Entries: []KeyValue{{Key: []byte("k"), Value: []byte("v")}}, More: true}}
	result = Result{Results: []OperationResult{{Succeeded: true, Results: inner}}}
	b, err = result.Marshal()
	require.NoError(t, err)
	again, err = DecodeResult(b)
	require.NoError(t, err)
	require.Equal(t, &result, again)
	for name, body := range map[string][]byte{
		"results in a branch's result":     in(1, in(7, in(7, nil))),
		"more entries than a txn may have": in(1, bytes.Repeat(in(3, nil), MaxOperations+1)),
		"the same in two operations":       bytes.Repeat(in(1, bytes.Repeat(in(3, nil), MaxOperations/2+1)), 2),
		"the same in branches":             bytes.Repeat(in(1, in(7, bytes.Repeat(in(3, nil), MaxOperations/2+1))), 2),
		"more results in branches":         bytes.Repeat(in(1, bytes.Repeat(in(7, nil), MaxOperations/2+1)), 2),
	} {
		var err error
		spent := allocated(func() { _, err = DecodeResult(body) })
		require.Error(t, err, name)
		require.Less(t, spent, 64<<10, name)
	}

	var many error
	body := bytes.Repeat(in(1, nil), 1<<20)
	spent := allocated(func() { _, many = DecodeResult(body) })
	require.ErrorIs(t, many, protowalk.ErrTooMany)
	require.Less(t, spent, 64<<10)
}

// FuzzDecodeResult: an accepted result has no more parts than a transaction may have operations.
func FuzzDecodeResult(f *testing.F) {
	inner := []OperationResult{{Deleted: 3}, {Found: true, Entries: []KeyValue{{Key: []byte("k"), Value: []byte("v")}}, More: true}}
	for _, results := range [][]OperationResult{nil, {{}}, {{Found: true, Value: []byte("v")}, {}}, inner, {{Succeeded: true, Results: inner}, {}}} {
		b, err := (&Result{Results: results}).Marshal()
		require.NoError(f, err)
		f.Add(b)
	}
	f.Add(in(1, in(7, in(7, nil))))
	f.Fuzz(func(t *testing.T, b []byte) {
		result, err := DecodeResult(b)
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(result.Results), MaxOperations)
		entries, nested := 0, 0
		for _, r := range result.Results {
			entries, nested = entries+len(r.Entries), nested+len(r.Results)
			for _, inner := range r.Results {
				entries += len(inner.Entries)
				require.Empty(t, inner.Results)
			}
		}
		require.LessOrEqual(t, entries, MaxOperations)
		require.LessOrEqual(t, nested, MaxOperations)
	})
}
