package tcp

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/transporttest"
)

type loopback struct{}

func (loopback) Listen(tb testing.TB, o transporttest.Options) transporttest.Node {
	s, err := Listen("127.0.0.1:0", Options{
		Key: transporttest.Key(o.Node), ChainID: o.ChainID, Handler: o.Handler, OpenMethods: o.OpenMethods, Workers: 64,
		bounds: bounds{maxCalls: o.MaxCalls, handshakeTimeout: patience, firstTimeout: patience, stallTimeout: patience},
	})
	require.NoError(tb, err)
	tb.Cleanup(func() { s.Close() })
	return transporttest.Node{Address: transport.Address{ID: transporttest.ID(o.Node), HostPort: s.Addr().String()}, Close: func() { s.Close() }}
}

func (loopback) Dialer(_ testing.TB, o transporttest.Options) transport.Dialer {
	return NewDialer(Options{Key: transporttest.Key(o.Node), ChainID: o.ChainID, bounds: bounds{handshakeTimeout: patience, stallTimeout: patience}})
}

func TestConformance(t *testing.T) { transporttest.Run(t, loopback{}) }
