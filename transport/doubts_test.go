package transport_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport"
)

func TestDoubts(t *testing.T) {
	var d transport.Doubts
	require.False(t, d.Right(true), "there was no doubt")
	require.False(t, d.MustProve())
	for i := range transport.MaxDoubts {
		d.Wrong()
		require.True(t, d.MustProve())
		require.True(t, d.Open())
		require.False(t, d.Right(true), "an unproved answer ends no doubt")
		require.True(t, d.Open())
		require.True(t, d.Right(false))
		require.False(t, d.Open())
		require.Equal(t, i == transport.MaxDoubts-1, d.MustProve())
	}
	d.Wrong()
	d.Reconnected()
	require.False(t, d.Open())
	require.True(t, d.MustProve(), "a new connection does not reset the count")
}
