package seeds_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

func TestNew(t *testing.T) {
	t.Setenv("STARLING_SEED", "")
	synctest.Test(t, func(t *testing.T) { require.NotEqual(t, seeds.New(t), seeds.New(t)) })
	t.Setenv("STARLING_SEED", "7")
	require.EqualValues(t, 7, seeds.New(t))
	require.Equal(t, seeds.Rand(t).Uint64(), seeds.Rand(t).Uint64())
}
