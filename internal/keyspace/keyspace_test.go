package keyspace

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPrefixEnd(t *testing.T) {
	require.Nil(t, PrefixEnd(nil))
	require.Nil(t, PrefixEnd([]byte{0xff, 0xff}))
	require.Equal(t, []byte{2}, PrefixEnd([]byte{1, 0xff}))
}
