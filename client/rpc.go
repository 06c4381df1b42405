package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	cmtbytes "github.com/cometbft/cometbft/libs/bytes"
	rpcclient "github.com/cometbft/cometbft/rpc/client"
	rpchttp "github.com/cometbft/cometbft/rpc/client/http"
	ctypes "github.com/cometbft/cometbft/rpc/core/types"
	jsonrpc "github.com/cometbft/cometbft/rpc/jsonrpc/client"
	"github.com/cometbft/cometbft/types"
)

// RPC is the part of a CometBFT node that a Client needs. The methods are called concurrently, and
// must return when their context ends. An error that is an answer of the node must be an
// *rpctypes.RPCError.
type RPC interface {
	Status(ctx context.Context) (*ctypes.ResultStatus, error)
	ABCIQueryWithOptions(ctx context.Context, path string, data cmtbytes.HexBytes, opts rpcclient.ABCIQueryOptions) (*ctypes.ResultABCIQuery, error)
	BroadcastTxSync(ctx context.Context, tx types.Tx) (*ctypes.ResultBroadcastTx, error)
	Tx(ctx context.Context, hash []byte, prove bool) (*ctypes.ResultTx, error)
	Commit(ctx context.Context, height *int64) (*ctypes.ResultCommit, error)
	Validators(ctx context.Context, height *int64, page, perPage *int) (*ctypes.ResultValidators, error)

	// Remote returns the name of the node in messages.
	Remote() string
}

const (
	// dialTimeout limits the connection to a node. If it takes longer, packets are being dropped.
	dialTimeout = 5 * time.Second
	// maxAnswerBytes limits an answer. The largest page of a range fits, in base64 and with its
	// proof.
	maxAnswerBytes = 64 << 20
	// maxIdle is the number of connections to a node that stay open for idleTimeout after their
	// last use.
	maxIdle = 1024
	// idleTimeout is shorter than that of CometBFT's RPC server, 10 s. A request on a connection
	// that the server is about to close fails, and Go does not repeat it, because it is a POST.
	idleTimeout = 5 * time.Second
)

// callTimeout limits one call, even if the caller's context allows more. Tests change it.
var callTimeout = 30 * time.Second

// node is an RPC over HTTP.
type node struct {
	*rpchttp.HTTP
	caller jsonrpc.Caller // for ABCIQueryWithOptions
	url    *url.URL
}

var _ RPC = (*node)(nil)

// NewRPC returns the RPC of the node at an address such as 127.0.0.1:26657, optionally with
// http://, https:// or, as in config.toml, tcp://. With grpc://, or grpcs:// for TLS, it is the
// address of the node's gRPC endpoint. NewRPC does not connect.
func NewRPC(address string) (RPC, error) {
	u, err := parseAddress(address)
	if err != nil {
		return nil, err
	}
	if isGRPC(u) {
		return newGRPC(address, u)
	}
	c, hc, err := newHTTP(address, u)
	if err != nil {
		return nil, err
	}
	caller, err := jsonrpc.NewWithHTTPClient(u.String(), hc)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", address, err)
	}
	return &node{HTTP: c, caller: caller, url: u}, nil
}

// NewHTTP returns CometBFT's own client of a node, for calls that are not in RPC. Duration and
// length of answers are limited as for RPC. The answers are not checked: even pointers may be nil.
func NewHTTP(address string) (*rpchttp.HTTP, error) {
	u, err := parseAddress(address)
	if err != nil {
		return nil, err
	}
	if isGRPC(u) {
		return nil, fmt.Errorf("address %q is that of a gRPC endpoint: this call needs the RPC address, such as http://127.0.0.1:26657", address)
	}
	c, _, err := newHTTP(address, u)
	return c, err
}

// newHTTP returns CometBFT's client of a node with its HTTP client, which is limited.
func newHTTP(address string, u *url.URL) (*rpchttp.HTTP, *http.Client, error) {
	hc, err := jsonrpc.DefaultHTTPClient(u.String())
	if err != nil {
		return nil, nil, fmt.Errorf("address %q: %w", address, err)
	}
	hc.Timeout = callTimeout
	if t, ok := hc.Transport.(*http.Transport); ok {
		t.DialContext = (&net.Dialer{Timeout: dialTimeout}).DialContext
		t.TLSHandshakeTimeout = dialTimeout
		// A watch holds a connection while it waits. Connections that are not kept between two
		// answers would be reopened for each.
		t.MaxIdleConns, t.MaxIdleConnsPerHost = 0, maxIdle
		t.IdleConnTimeout = idleTimeout
	}
	hc.Transport = limitedTransport{hc.Transport}
	c, err := rpchttp.NewWithClient(u.String(), "/websocket", hc)
	if err != nil {
		return nil, nil, fmt.Errorf("address %q: %w", address, err)
	}
	return c, hc, nil
}

// parseAddress converts any form of an RPC address to a URL.
func parseAddress(address string) (*url.URL, error) {
	s := strings.TrimSpace(address)
	if !strings.Contains(s, "://") {
		s = "http://" + s
	}
	u, err := url.Parse(s)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", address, err)
	}
	switch u.Scheme {
	case "tcp":
		u.Scheme = "http"
	case "http", "https", schemeGRPC, schemeGRPCS:
	default:
		return nil, fmt.Errorf("address %q: scheme %q is not http, https, tcp, grpc or grpcs", address, u.Scheme)
	}
	if u.Host == "" {
		return nil, fmt.Errorf("address %q has no host, write it as http://127.0.0.1:26657", address)
	}
	// A listen address such as 0.0.0.0 does not name a host to connect to.
	if host, port, err := net.SplitHostPort(u.Host); err == nil && (host == "" || net.ParseIP(host).IsUnspecified()) {
		u.Host = net.JoinHostPort("127.0.0.1", port)
	}
	return u, nil
}

// Remote hides a password in the address.
func (n *node) Remote() string { return n.url.Redacted() }

// limitedTransport refuses answers that exceed maxAnswerBytes.
type limitedTransport struct{ http.RoundTripper }

func (t limitedTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if response.ContentLength > maxAnswerBytes {
		response.Body.Close()
		return nil, errAnswerTooLong
	}
	response.Body = &limitedBody{ReadCloser: response.Body, left: maxAnswerBytes}
	return response, nil
}

var errAnswerTooLong = fmt.Errorf("the node's answer is longer than %d bytes", maxAnswerBytes)

type limitedBody struct {
	io.ReadCloser
	left int64
}

func (b *limitedBody) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, errAnswerTooLong
	}
	return n, err
}

// notSent reports whether err shows that a request was never sent.
func notSent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" || errors.Is(err, errNotConnected)
}
