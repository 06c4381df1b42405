package server

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// The number of remembered keys is bounded. Further ones count each time.
func TestFreshKeysAreBounded(t *testing.T) {
	var f fresh
	key := func(i uint32) []byte { return binary.BigEndian.AppendUint32(nil, i) }
	for i := range uint32(maxFresh) {
		require.Zero(t, f.put(key(i), 10))
	}
	for range 2 {
		require.Zero(t, f.put(key(maxFresh), 10), "it is not remembered")
	}
	require.Len(t, f.sizes, maxFresh)
	require.EqualValues(t, 10, f.put(key(7), 20))
	require.EqualValues(t, 20, f.put(key(7), 0))
	require.Zero(t, f.put(key(7), 0))
	require.Zero(t, f.put(key(maxFresh), 30), "a deleted key makes room")
	require.EqualValues(t, 30, f.put(key(maxFresh), 0))
	f.clear()
	require.Zero(t, f.put(key(8), 10))
}
