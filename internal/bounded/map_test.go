package bounded_test

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/bounded"
)

func TestMap(t *testing.T) {
	m := bounded.New[int, string](3)
	for k, v := range []string{"a", "b", "c"} {
		m.Set(k, v)
	}
	m.Set(0, "A") // now the newest
	m.Set(3, "d")
	require.Equal(t, map[int]string{0: "A", 2: "c", 3: "d"}, maps.Collect(m.All))
	m.Delete(2)
	m.Delete(2)
	_, has := m.Get(2)
	require.False(t, has)
	v, has := m.Get(0)
	require.True(t, has)
	require.Equal(t, "A", v)
	for k := range 10_000 {
		m.Set(k, "")
		require.LessOrEqual(t, m.Len(), 3)
	}
	require.Equal(t, map[int]string{9997: "", 9998: "", 9999: ""}, maps.Collect(m.All))
}
