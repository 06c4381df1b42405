package bubble_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/bubble"
)

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		bubble.Sleep(24 * time.Hour)
		require.Equal(t, 24*time.Hour, time.Since(began))
	})
	require.Panics(t, func() { bubble.Sleep(0) }, "outside of a bubble")
}
