package budget

import (
	"math"
	"runtime/debug"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/stretchr/testify/require"
)

func TestAvailableMemory(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(math.MaxInt64))
	all, known := Available()
	system, err := memlimit.FromSystem()
	require.Equal(t, err == nil, known)
	require.LessOrEqual(t, all, system)
	if group, err := memlimit.FromCgroup(); err == nil {
		require.LessOrEqual(t, all, group)
	}
	debug.SetMemoryLimit(1 << 20)
	all, known = Available()
	require.True(t, known)
	require.EqualValues(t, 1<<20, all)
}
