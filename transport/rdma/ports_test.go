package rdma

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport/rdma/internal/verbs"
)

func TestAddressesOfAPort(t *testing.T) {
	gid := func(s string) verbs.GID { return netip.MustParseAddr(s).As16() }
	p := portOf(verbs.Info{Device: "rxe0", GIDs: []verbs.GID{gid("fe80::1"), gid("10.7.0.1"), gid("2001:db8::1")}})
	require.Equal(t, Port{Device: "rxe0", Addrs: []netip.Addr{netip.MustParseAddr("10.7.0.1"), netip.MustParseAddr("2001:db8::1")}}, p)
}
