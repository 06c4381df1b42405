package client

import (
	"net/http"
	"net/url"
	"testing"

	rpcserver "github.com/cometbft/cometbft/rpc/jsonrpc/server"
	"github.com/stretchr/testify/require"
)

// The client closes an idle connection before the server does: a request that meets the server's
// close fails.
func TestIdleConnections(t *testing.T) {
	_, hc, err := newHTTP("127.0.0.1:1", &url.URL{Scheme: "http", Host: "127.0.0.1:1"})
	require.NoError(t, err)
	limited, ok := hc.Transport.(limitedTransport)
	require.True(t, ok)
	inner, ok := limited.RoundTripper.(*http.Transport)
	require.True(t, ok)
	require.Positive(t, inner.IdleConnTimeout)
	require.LessOrEqual(t, inner.IdleConnTimeout, rpcserver.DefaultConfig().ReadTimeout/2)
}
