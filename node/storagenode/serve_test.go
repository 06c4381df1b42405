package storagenode

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
	"github.com/starling-kv/starling/transport/transporttest"
)

// Any number of requests for upper trees, which are short to send and long to answer, leave workers
// for witnesses.
func TestUpperTreesDoNotDelayWitnesses(t *testing.T) {
	const strangers = 12 // more than the workers of any lane
	var uppers atomic.Int32
	release := make(chan struct{})
	s, err := tcp.Listen("127.0.0.1:0", tcp.Options{
		Key: transporttest.Key(1), ChainID: "test-chain", Lanes: lanes(), MaxConnsPerHost: strangers + 1,
		Handler: transport.HandlerFunc(func(_ context.Context, r transport.Request) ([]byte, error) {
			if r.Method == dsm.MethodUpper {
				uppers.Add(1)
				<-release
			}
			return []byte{1}, nil
		}),
	})
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	dial := func(key int) transport.Conn {
		conn, err := tcp.NewDialer(tcp.Options{Key: transporttest.Key(key), ChainID: "test-chain"}).
			Dial(t.Context(), transport.Address{ID: transporttest.ID(1), HostPort: s.Addr().String()})
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	for i := range strangers {
		conn := dial(10 + i)
		go func() { _, _ = conn.Call(t.Context(), transport.Call{Method: dsm.MethodUpper, Max: 10}) }()
	}
	t.Cleanup(func() { close(release) })
	nodetest.Until(t, "a request for an upper tree", func() bool { return uppers.Load() > 0 })
	honest := dial(2)
	for range 20 {
		_, err := honest.Call(t.Context(), transport.Call{Method: dsm.MethodWitness, Max: 10})
		require.NoError(t, err)
	}
	require.EqualValues(t, 1, uppers.Load())
}
