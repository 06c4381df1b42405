package avlstar

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar/record"
)

func TestEmpty(t *testing.T) {
	for _, chunkBytes := range []uint64{0, MaxChunkBytes + 1} {
		_, err := Empty(chunkBytes)
		require.ErrorContains(t, err, "must be 1 to 15000000")
		_, err = FromLeaves(chunkBytes, func(func(Leaf, error) bool) {})
		require.ErrorContains(t, err, "must be 1 to 15000000")
		_, err = Assemble(&Manifest{ChunkBytes: chunkBytes}, nil)
		require.ErrorIs(t, err, ErrInvalidManifest)
	}
	v, err := Empty(DefaultChunkBytes)
	require.NoError(t, err)
	requireRoundTrip(t, v)
	require.Zero(t, v.NumChunks())
	require.Zero(t, v.Len())
	require.Zero(t, mustRangeBytes(t, v, nil, nil))
	require.False(t, mustHas(t, v, []byte("a")))
	require.Empty(t, collect2(mustAscend(t, v, nil, nil)))
	require.Empty(t, collect2(v.NewInner(nil)))
	_, err = v.Chunk(0)
	require.ErrorContains(t, err, "no chunk 0, the version has 0")
}

func TestApplyRefuses(t *testing.T) {
	v, err := Empty(100)
	require.NoError(t, err)
	v = mustApply(t, v, Change{[]byte("a"), []byte("1")})
	long, huge := bytes.Repeat([]byte{1}, MaxKeyBytes+1), make([]byte, MaxValueBytes+1)
	one := []byte{1}
	for _, c := range []struct {
		name    string
		changes []Change
	}{
		{"key of 0 bytes", []Change{{nil, one}}},
		{"key of 0 bytes", []Change{{[]byte{}, nil}}},
		{"key of 4097 bytes", []Change{{long, one}}},
		{"key of 4097 bytes", []Change{{long, nil}}},
		{"value of 0 bytes", []Change{{one, []byte{}}}},
		{"value of 1048577 bytes", []Change{{one, huge}}},
		{"twice", []Change{{one, one}, {[]byte{2}, one}, {one, nil}}},
	} {
		_, err := v.Apply(c.changes)
		require.ErrorIs(t, err, ErrInvalidChange)
		require.ErrorContains(t, err, c.name)
		require.Less(t, len(err.Error()), 300)
	}
	mustApply(t, v, Change{long[1:], huge[1:]})
}

func TestApplyWithoutEffect(t *testing.T) {
	v, err := Empty(100)
	require.NoError(t, err)
	require.Same(t, v, mustApply(t, v, Change{Key: []byte("a")}))
	v = mustApply(t, v, Change{[]byte("a"), []byte("1")}, Change{[]byte("b"), []byte("2")})
	require.Same(t, v, mustApply(t, v))
	require.Same(t, v, mustApply(t, v, Change{[]byte("a"), []byte("1")}, Change{Key: []byte("c")}, Change{Key: []byte("0")}))
	require.Empty(t, collect2(v.NewInner(v)))
}

func TestApplyCopies(t *testing.T) {
	v, err := Empty(100)
	require.NoError(t, err)
	key, value := []byte("key"), []byte("value")
	v = mustApply(t, v, Change{key, value})
	key[0], value[0] = 'x', 'x'
	got, ok := mustGet(t, v, []byte("key"))
	require.True(t, ok)
	require.Equal(t, "value", string(got))
}

func TestFromLeavesRefuses(t *testing.T) {
	leaf := func(key string, height uint8) Leaf { return Leaf{Key: []byte(key), Value: []byte("v"), Height: height} }
	for want, leaves := range map[string][]Leaf{
		"does not ascend":      {leaf("b", 0), leaf("a", 1)},
		"key 61 does not asc":  {leaf("a", 0), leaf("a", 1)},
		"higher than its chil": {leaf("a", 0), leaf("b", 1), leaf("c", 1)},
		"inner node of height": {leaf("a", 0), leaf("b", 0)},
		"over children":        {leaf("a", 0), leaf("b", 3)},
		"out of balance":       {leaf("a", 0), leaf("b", 1), leaf("c", 2), leaf("d", 3)},
		"key of 0 bytes":       {leaf("", 0)},
		"key of 4097 bytes":    {leaf(strings.Repeat("x", 4097), 0)},
		"value of 0 bytes":     {{Key: []byte("a")}},
	} {
		_, err := FromLeaves(100, func(yield func(Leaf, error) bool) {
			for _, l := range leaves {
				if !yield(l, nil) {
					return
				}
			}
		})
		require.ErrorContains(t, err, want)
	}
	broken := errors.New("broken disk")
	_, err := FromLeaves(100, func(yield func(Leaf, error) bool) { _ = yield(leaf("a", 0), nil) && yield(Leaf{}, broken) })
	require.ErrorIs(t, err, broken)
}

func TestEarlyStop(t *testing.T) {
	v := stateOf(t, 50, 20)
	for l := range mustLeaves(t, v) {
		require.Equal(t, "k00", string(l.Key))
		break
	}
	n := 0
	for range mustAscend(t, v, []byte("k05"), nil) {
		if n++; n == 3 {
			break
		}
	}
	for range v.NewInner(nil) {
		if n++; n == 6 {
			break
		}
	}
	require.Equal(t, 6, n)
}

func TestFloor(t *testing.T) {
	v := stateOf(t, 50, 3) // k00, k02, k04
	for key, want := range map[string]string{"k": "", "k00": "k00", "k01": "k00", "k03": "k02", "k04": "k04", "z": "k04"} {
		got, value, ok := mustFloor(t, v, []byte(key))
		require.Equal(t, want, string(got), key)
		require.Equal(t, want != "", ok, key)
		require.Equal(t, ok, value != nil, key)
	}
}

func TestApplyTooOften(t *testing.T) {
	v, err := Empty(100)
	require.NoError(t, err)
	v.epoch = freed - 2
	v = mustApply(t, v, Change{[]byte("a"), []byte("1")})
	_, err = v.Apply([]Change{{[]byte("a"), []byte("2")}})
	// Otherwise the number would wrap around, and published nodes would be changed in place.
	require.ErrorIs(t, err, ErrTooLarge)
	_, err = new(tree).publish(&Version{upper: math.MaxUint32})
	require.ErrorIs(t, err, ErrTooLarge)
}

func TestRecordBytes(t *testing.T) {
	for _, n := range []int{1, 2, 127, 128, 255, 256, 4096, 16383, 16384, 1 << 20} {
		l := Leaf{Key: make([]byte, min(n, MaxKeyBytes)), Value: make([]byte, n)}
		require.Equal(t, uint64(len(record.Append(nil, l))), RecordBytes(len(l.Key), n))
	}
	require.Equal(t, uint64(record.MaxBytes), RecordBytes(MaxKeyBytes, MaxValueBytes))
	require.Equal(t, uint64(record.MinBytes), RecordBytes(1, 1))
	require.Equal(t, 1_052_678, record.MaxBytes)
}
