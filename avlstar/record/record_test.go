package record

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRoundTrip(t *testing.T) {
	var b []byte
	var leaves []Leaf
	for i, size := range []struct{ key, value int }{{1, 1}, {127, 128}, {128, 127}, {MaxKeyBytes, MaxValueBytes}} {
		l := Leaf{Key: bytes.Repeat([]byte{1}, size.key), Value: bytes.Repeat([]byte{2}, size.value), Height: uint8(i)}
		before := len(b)
		b = Append(b, l)
		leaves = append(leaves, l)
		require.EqualValues(t, Bytes(size.key, size.value), len(b)-before)
		require.Equal(t, len(b)-before, Size(b[before:]))
		body := make([]byte, len(b)-before-1)
		PutBody(body, l.Key, l.Value)
		require.Equal(t, b[before+1:], body)
	}
	for _, want := range leaves {
		var got Leaf
		var err error
		got, b, err = Decode(b)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, len(got.Key), cap(got.Key))
	}
	require.Empty(t, b)
	require.EqualValues(t, MinBytes, Bytes(1, 1))
	require.EqualValues(t, MaxBytes, Bytes(MaxKeyBytes, MaxValueBytes))
}

// There is only one encoding: everything else is refused.
func TestHostile(t *testing.T) {
	good := Append(nil, Leaf{Key: []byte("key"), Value: []byte("value"), Height: 3})
	for n := range good {
		_, _, err := Decode(good[:n])
		require.ErrorIs(t, err, ErrShort)
	}
	for name, b := range map[string][]byte{
		"no key":         {0, 0, 1, 'v'},
		"no value":       {0, 1, 'k', 0},
		"key too long":   append([]byte{0, 0x81, 0x20}, make([]byte, MaxKeyBytes+9)...),
		"value too long": append([]byte{0, 1, 'k', 0x81, 0x80, 0x40}, make([]byte, MaxValueBytes+9)...),
		"longer form":    {0, 0x81, 0, 'k', 1, 'v'},
		"65 bits":        append([]byte{0}, append(bytes.Repeat([]byte{0xff}, 9), 2)...),
	} {
		_, _, err := Decode(b)
		require.Error(t, err, name)
		require.NotErrorIs(t, err, ErrShort, name)
	}
}
