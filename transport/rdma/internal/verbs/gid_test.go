package verbs

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGIDsOf(t *testing.T) {
	ib := net.HardwareAddr{0, 0, 1, 0x48, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8}
	v4 := netip.MustParseAddr("10.7.0.1")
	all := []link{
		{ib, []netip.Addr{netip.MustParseAddr("10.8.0.1")}},
		{net.HardwareAddr{1, 2, 3, 4, 5, 6}, []netip.Addr{v4}},
	}
	require.Equal(t, []GID{v4.As16()}, gidsOf(v4, all))
	require.Equal(t, []GID{v4.As16()}, gidsOf(netip.AddrFrom16(v4.As16()), all), "mapped to IPv6")
	require.Equal(t, "10.7.0.1", gidsOf(v4, all)[0].String())
	v6 := netip.MustParseAddr("fe80::1%eth0")
	require.Equal(t, []GID{v6.As16()}, gidsOf(v6, all))
	require.Equal(t, []GID{netip.MustParseAddr("10.8.0.1").As16(), GID(ib[4:])}, gidsOf(netip.MustParseAddr("10.8.0.1"), all))
	require.NotEmpty(t, links(), "this host has a loopback interface")
}
