package transport

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMuxRefusesASecondHandler(t *testing.T) {
	mux := new(Mux)
	mux.Handle(1, HandlerFunc(nil))
	require.Panics(t, func() { mux.Handle(1, HandlerFunc(nil)) })
}
