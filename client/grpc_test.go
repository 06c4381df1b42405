package client

import (
	"testing"

	rpctypes "github.com/cometbft/cometbft/rpc/jsonrpc/types"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/starling-kv/starling/internal/ports"
)

func TestGRPCAddresses(t *testing.T) {
	t.Parallel()
	for address, says := range map[string]string{
		"grpc://127.0.0.1": "has no port", "grpc://": "has no host", "grpx://127.0.0.1:1": "grpc or grpcs",
	} {
		_, err := NewRPC(address)
		require.ErrorContains(t, err, says, address)
	}
	n, err := NewRPC("grpcs://user:secret@node.example:26690")
	require.NoError(t, err)
	require.NotContains(t, n.Remote(), "secret")
	_, err = NewHTTP("grpc://127.0.0.1:1")
	require.ErrorContains(t, err, "needs the RPC address")
}

// A write that was not sent may be sent to another node. One that may have been sent must not count
// as refused.
func TestGRPCErrors(t *testing.T) {
	t.Parallel()
	held, err := ports.Hold(1)
	require.NoError(t, err)
	held.Release()
	closed, err := NewRPC("grpc://" + held.Address(0))
	require.NoError(t, err)
	_, err = closed.BroadcastTxSync(t.Context(), []byte("a=1"))
	require.True(t, notSent(err), err)
	require.ErrorContains(t, err, "not connected: dial tcp "+held.Address(0))
	require.NotContains(t, err.Error(), `"`)

	for code, answer := range map[codes.Code]bool{
		codes.Unavailable: false, codes.Canceled: false, codes.DeadlineExceeded: false,
		codes.NotFound: true, codes.OutOfRange: true, codes.ResourceExhausted: true, codes.FailedPrecondition: true, codes.Unknown: true,
	} {
		err := converted(t.Context(), status.Error(code, "because"))
		require.ErrorContains(t, err, "because")
		require.Equal(t, answer, answered(err), code)
		require.False(t, notSent(err), code)
		var rpc *rpctypes.RPCError
		if answer {
			require.ErrorAs(t, err, &rpc)
			require.Equal(t, "because", rpc.Message)
		}
	}
}
