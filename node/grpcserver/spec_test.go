package grpcserver

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/starling-kv/starling/api"
	"github.com/starling-kv/starling/internal/spectest"
)

// TestSpecExample makes the call in docs/spec/grpc.md with an HTTP client that knows no gRPC.
func TestSpecExample(t *testing.T) {
	s, _ := listen(t, func(_ context.Context, r *abci.RequestQuery) (*abci.ResponseQuery, error) {
		require.Equal(t, "key", string(r.Data))
		return &abci.ResponseQuery{Value: []byte("value"), Height: r.Height}, nil
	}, nil)
	message, err := proto.Marshal(&api.GetRequest{Key: []byte("key"), Height: 300})
	require.NoError(t, err)
	frame := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)

	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.Addr()+api.Node_Get_FullMethodName, bytes.NewReader(frame))
	require.NoError(t, err)
	request.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}}
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	require.NoError(t, err)
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, "0", response.Trailer.Get("Grpc-Status"))
	spectest.Require(t, "grpc.md", frame, answer)
}
