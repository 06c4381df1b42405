package sleep

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		require.NoError(t, For(t.Context(), time.Hour))
		require.Equal(t, time.Hour, time.Since(began))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, For(ctx, time.Hour), context.DeadlineExceeded)
		require.Equal(t, time.Hour+time.Minute, time.Since(began))
	})
}
