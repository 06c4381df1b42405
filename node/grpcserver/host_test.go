package grpcserver

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func at(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip)} }

// The addresses of an IPv6 /64 are one host, and so are an IPv4 address and its mapping to IPv6.
func TestHostOf(t *testing.T) {
	for ip, want := range map[string]string{
		"192.0.2.1": "192.0.2.1/32", "::ffff:192.0.2.1": "192.0.2.1/32",
		"2001:db8::1": "2001:db8::/64", "2001:db8::ffff:1": "2001:db8::/64", "2001:db8:0:1::1": "2001:db8:0:1::/64",
		"127.0.0.1": "127.0.0.1/32", "::ffff:127.0.0.1": "127.0.0.1/32", "::1": "::/64",
	} {
		host, local := hostOf(at(ip))
		require.Equal(t, want, host.String(), ip)
		require.Equal(t, net.ParseIP(ip).IsLoopback(), local, ip)
	}
	host, local := hostOf(nil)
	require.False(t, host.IsValid(), "an address of another kind")
	require.False(t, local)
}
