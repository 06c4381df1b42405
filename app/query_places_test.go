package app

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// No number of clients keeps a further one from a place before all are taken, and no client has
// more than half.
func TestQueryPlaces(t *testing.T) {
	var p queryPlaces
	var given []func()
	all := func(client string) (n int) {
		for {
			release := p.take(ForClient(context.Background(), client))
			if release == nil {
				return n
			}
			given = append(given, release)
			n++
		}
	}
	require.Equal(t, maxWaitingQueries/2, all("a"))
	require.Equal(t, maxWaitingQueries/4, all("b"))
	require.Nil(t, p.take(ForClient(context.Background(), "a")))
	require.Equal(t, maxWaitingQueries/8, all(""))
	require.False(t, p.areTaken())
	for _, client := range []string{"c", "d", "e", "f"} {
		all(client)
	}
	require.True(t, p.areTaken())
	for _, release := range given {
		release()
	}
	require.Empty(t, p.clients)
	require.Equal(t, maxWaitingQueries/2, all("g"))
}
