package tcp

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHostOf(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.7": "192.0.2.7", "2001:db8:1:2:3:4:5:6": "2001:db8:1:2::/64", "2001:db8:1:2::9": "2001:db8:1:2::/64", "2001:db8:1:3::9": "2001:db8:1:3::/64",
		"fe80::1%eth0": "fe80::/64", "pipe": "pipe", "": "",
	} {
		require.Equal(t, want, originOf(pipeAddr(address)).host(), address)
	}
}
