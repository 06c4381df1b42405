package crc32c

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The expected values are the polynomial's check value and those of RFC 3720, appendix B.4.
func TestSum(t *testing.T) {
	require.Equal(t, uint32(0xe3069283), Sum([]byte("123456789")))
	require.Equal(t, uint32(0xe3069283), Sum([]byte("123"), nil, []byte("456789")))
	require.Equal(t, uint32(0xe3069283), Update(Sum([]byte("12345")), []byte("6789")))
	require.Equal(t, uint32(0x8a9136aa), Sum(make([]byte, 32)))
	require.Zero(t, Sum())
}
