package backoff

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDoubled(t *testing.T) {
	require.Equal(t, time.Second, Doubled(time.Second, 0, time.Minute))
	require.Equal(t, 8*time.Second, Doubled(time.Second, 3, time.Minute))
	require.Equal(t, time.Minute, Doubled(time.Second, math.MaxInt, time.Minute))
}
