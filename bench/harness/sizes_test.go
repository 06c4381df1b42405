package harness

import (
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

func TestSizes(t *testing.T) {
	var all []int
	f := &Flags{FlagSet: pflag.NewFlagSet("test", pflag.ContinueOnError)}
	f.Sizes(&all, "sizes", []int{4 << 20}, 1<<10, 4<<20, "sizes")
	require.Equal(t, []int{4 << 20}, all)
	require.NoError(t, f.Set("sizes", "1MiB,64KiB,1025,1MiB,1024B"))
	require.Equal(t, []int{1 << 10, 1025, 64 << 10, 1 << 20}, all)
	require.Equal(t, "1KiB,1025B,64KiB,1MiB", f.Lookup("sizes").Value.String())
	require.NoError(t, f.Check())
	for _, text := range []string{"", "0", "-1KiB", "1.5MiB", "1GiB", "9223372036854775807MiB"} {
		require.ErrorContains(t, f.Set("sizes", text), "is not a size", text)
	}
	for text, bytes := range map[string]string{"8MiB": "8MiB", "1KiB,512": "512B"} {
		require.NoError(t, f.Set("sizes", text))
		require.EqualError(t, f.Check(), "--sizes has "+bytes+", each must be from 1KiB to 4MiB")
	}
}
