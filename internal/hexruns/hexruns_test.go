package hexruns

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRuns(t *testing.T) {
	for _, b := range []string{"", "a", strings.Repeat("a", 5000), "x" + strings.Repeat("abc", 400) + "ab", strings.Repeat("ab", 100) + strings.Repeat("cd", 100)} {
		text := Encode([]byte(b))
		require.Less(t, len(text), 50)
		again, err := Decode(text)
		require.NoError(t, err)
		require.Equal(t, b, string(again))
	}
	for _, wrong := range []string{"0", "zz", "00*", "00*x", "00*-1"} {
		_, err := Decode(wrong)
		require.Error(t, err, wrong)
	}
}
