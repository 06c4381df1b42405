package wake

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Up does not block, and many calls wake the receiver once.
func TestUp(t *testing.T) {
	c := make(chan struct{}, 1)
	for range 2 {
		Up(c)
		Up(c)
		<-c
		require.Empty(t, c)
	}
}
