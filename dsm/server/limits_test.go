package server

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDefaultWaitingBytes(t *testing.T) {
	var l Limits
	l.setDefaults()
	require.Equal(t, DefaultWaitingBytes, l.Bytes)
}
