package guest

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/bench/harness"
)

// The flags that Add appends to a command select the same target, and wrong ones are refused.
func TestTarget(t *testing.T) {
	for _, want := range []Target{{}, {Devices: "mlx5_0"}, {Devices: "mlx5_0,mlx5_1"}, {Devices: "10.7.0.1,fd00::1"}, {Guest: true}} {
		var got Target
		require.NoError(t, parse(&got, want.Add("join")))
		require.Equal(t, want, got)
	}
	require.Equal(t, "join --blocks 20 --devices mlx5_0,mlx5_1", Target{Devices: "mlx5_0,mlx5_1"}.Add("join --blocks 20"))
	for _, devices := range []string{",", "mlx5_0,", ",mlx5_1", "a,b,c"} {
		require.EqualError(t, parse(new(Target), Target{Devices: devices}.Add("join")),
			`--devices is "`+devices+`", it must name one device, or two separated by a comma`)
	}
	require.ErrorContains(t, parse(new(Target), "join --guest --devices mlx5_0"), "leave out --devices")
}

func parse(t *Target, command string) error {
	flags := &harness.Flags{FlagSet: pflag.NewFlagSet("test", pflag.ContinueOnError)}
	t.Flags(flags, new(string))
	if err := flags.Parse(strings.Fields(command)[1:]); err != nil {
		return err
	}
	return flags.Check()
}
