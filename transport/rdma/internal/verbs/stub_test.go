//go:build !(cgo && linux && rdma)

package verbs

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNotBuilt(t *testing.T) {
	_, err := Open(netip.MustParseAddr("10.7.0.1"), 16)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = List()
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.False(t, Supported)
}
