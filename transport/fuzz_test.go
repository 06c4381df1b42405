package transport

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzParseAddress parses addresses as advertised by peers or configured by operators.
func FuzzParseAddress(f *testing.F) {
	for _, s := range []string{
		"host:1", "[::1]:26666", "00112233445566778899aabbccddeeff00112233@10.0.0.1:26666", "@host:1", "a@b@c:1", "host", ":1", "host:", "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := ParseAddress(s)
		if err != nil {
			return
		}
		require.Equal(t, s, a.String())
		if a.ID != "" {
			require.NoError(t, a.ID.Validate())
		}
	})
}
