package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	cmtbytes "github.com/cometbft/cometbft/libs/bytes"
	"github.com/cometbft/cometbft/p2p"
	"github.com/cometbft/cometbft/proto/tendermint/crypto"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	rpcclient "github.com/cometbft/cometbft/rpc/client"
	ctypes "github.com/cometbft/cometbft/rpc/core/types"
	rpctypes "github.com/cometbft/cometbft/rpc/jsonrpc/types"
	"github.com/cometbft/cometbft/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/starling-kv/starling/api"
)

// windowGRPC is the number of bytes that may be in flight from a node: the largest page of a range
// fits. With a fixed window, gRPC does not measure the connection by a ping for nearly every call.
const windowGRPC = 4 << 20

// The schemes of a gRPC address, without and with TLS.
const schemeGRPC, schemeGRPCS = "grpc", "grpcs"

func isGRPC(u *url.URL) bool { return u.Scheme == schemeGRPC || u.Scheme == schemeGRPCS }

// grpcNode is an RPC over gRPC.
type grpcNode struct {
	api api.NodeClient
	url *url.URL
}

var _ RPC = (*grpcNode)(nil)

func newGRPC(address string, u *url.URL) (RPC, error) {
	if u.Port() == "" {
		return nil, fmt.Errorf("address %q has no port, write it as grpc://127.0.0.1:26690", address)
	}
	transport := insecure.NewCredentials()
	if u.Scheme == schemeGRPCS {
		transport = credentials.NewTLS(&tls.Config{ServerName: u.Hostname(), MinVersion: tls.VersionTLS12})
	}
	conn, err := grpc.NewClient("passthrough:///"+u.Host,
		grpc.WithTransportCredentials(transport), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
		grpc.WithInitialWindowSize(windowGRPC), grpc.WithInitialConnWindowSize(windowGRPC),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes)), grpc.WithIdleTimeout(time.Minute),
		grpc.WithContextDialer(func(ctx context.Context, host string) (net.Conn, error) {
			return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", host)
		}),
		// The pool decides when a lost node is asked again.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: firstPoll, Multiplier: 1.5, Jitter: 0.2, MaxDelay: longPoll}, MinConnectTimeout: dialTimeout,
		}))
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", address, err)
	}
	return &grpcNode{api: api.NewNodeClient(conn), url: u}, nil
}

// Remote hides a password in the address.
func (n *grpcNode) Remote() string { return n.url.Redacted() }

// errNotConnected means that a request was never sent, because there is no connection.
var errNotConnected = errors.New("not connected")

// converted converts the error of a call: an answer of the node becomes an *rpctypes.RPCError.
func converted(ctx context.Context, err error) error {
	s, is := status.FromError(err)
	switch {
	case err == nil || !is:
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	case s.Code() == codes.Unavailable:
		if _, cause, dialing := strings.Cut(s.Message(), "Error while dialing: "); dialing {
			return fmt.Errorf("%w: %s", errNotConnected, strings.TrimSuffix(cause, `"`))
		}
		return errors.New(s.Message())
	case s.Code() == codes.Canceled, s.Code() == codes.DeadlineExceeded:
		return err
	default:
		return &rpctypes.RPCError{Code: int(s.Code()), Message: s.Message(), Data: s.Code().String()}
	}
}

func (n *grpcNode) Status(ctx context.Context) (*ctypes.ResultStatus, error) {
	r, err := n.api.Status(ctx, &api.StatusRequest{})
	if err != nil {
		return nil, converted(ctx, err)
	}
	return &ctypes.ResultStatus{
		NodeInfo: p2p.DefaultNodeInfo{Network: r.GetChainId(), DefaultNodeID: p2p.ID(r.GetNodeId()), Moniker: r.GetMoniker(), Version: r.GetVersion()},
		SyncInfo: ctypes.SyncInfo{
			EarliestBlockHeight: r.GetOldestHeight(), LatestBlockHeight: r.GetLatestHeight(), LatestAppHash: r.GetLatestAppHash(),
			LatestBlockHash: r.GetLatestBlockHash(), LatestBlockTime: time.Unix(0, r.GetLatestTimeNs()).UTC(), CatchingUp: r.GetCatchingUp(),
		},
	}, nil
}

func (n *grpcNode) ABCIQueryWithOptions(ctx context.Context, path string, data cmtbytes.HexBytes, o rpcclient.ABCIQueryOptions) (*ctypes.ResultABCIQuery, error) {
	r, err := n.api.Query(ctx, &api.QueryRequest{Path: path, Data: data, Height: o.Height, Prove: o.Prove})
	if err != nil {
		return nil, converted(ctx, err)
	}
	answer := abci.ResponseQuery{
		Code: r.GetCode(), Codespace: r.GetCodespace(), Log: r.GetLog(), Key: r.GetKey(), Value: r.GetValue(), Height: r.GetHeight(),
	}
	if len(r.GetProof()) > 0 {
		answer.ProofOps = new(crypto.ProofOps)
		for _, op := range r.GetProof() {
			answer.ProofOps.Ops = append(answer.ProofOps.Ops, crypto.ProofOp{Type: op.GetType(), Key: op.GetKey(), Data: op.GetData()})
		}
	}
	return &ctypes.ResultABCIQuery{Response: answer}, nil
}

func (n *grpcNode) BroadcastTxSync(ctx context.Context, raw types.Tx) (*ctypes.ResultBroadcastTx, error) {
	r, err := n.api.Submit(ctx, &api.SubmitRequest{Transactions: [][]byte{raw}})
	switch {
	case err != nil:
		return nil, converted(ctx, err)
	case len(r.GetResults()) != 1:
		return nil, fmt.Errorf("%w: %d results of 1 transaction", ErrUnproved, len(r.GetResults()))
	case r.GetResults()[0].GetError() != "":
		return nil, &rpctypes.RPCError{Message: r.GetResults()[0].GetError()}
	}
	result := r.GetResults()[0]
	return &ctypes.ResultBroadcastTx{Code: result.GetCode(), Log: result.GetLog(), Codespace: result.GetCodespace(), Hash: result.GetHash()}, nil
}

func (n *grpcNode) Tx(ctx context.Context, hash []byte, _ bool) (*ctypes.ResultTx, error) {
	r, err := n.api.GetTransaction(ctx, &api.GetTransactionRequest{Hash: hash})
	if err != nil {
		return nil, converted(ctx, err)
	}
	result := r.GetResult()
	return &ctypes.ResultTx{Hash: hash, Height: result.GetHeight(), TxResult: abci.ExecTxResult{
		Code: result.GetCode(), Codespace: result.GetCodespace(), Log: result.GetLog(), Data: result.GetData(),
	}}, nil
}

func (n *grpcNode) Commit(ctx context.Context, height *int64) (*ctypes.ResultCommit, error) {
	r, err := n.api.GetHeader(ctx, &api.GetHeaderRequest{Height: heightOrLatest(height)})
	if err != nil {
		return nil, converted(ctx, err)
	}
	var encoded cmtproto.SignedHeader
	if err := encoded.Unmarshal(r.GetSignedHeader()); err != nil {
		return nil, fmt.Errorf("%w: the signed header does not decode: %w", ErrUnproved, err)
	}
	header, err := types.SignedHeaderFromProto(&encoded)
	if err != nil {
		return nil, fmt.Errorf("%w: the signed header does not decode: %w", ErrUnproved, err)
	}
	return &ctypes.ResultCommit{SignedHeader: *header, CanonicalCommit: true}, nil
}

func (n *grpcNode) Validators(ctx context.Context, height *int64, page, perPage *int) (*ctypes.ResultValidators, error) {
	request := &api.GetValidatorsRequest{Height: heightOrLatest(height)}
	if page != nil {
		request.Page = uint32(*page)
	}
	if perPage != nil {
		request.PerPage = uint32(*perPage)
	}
	r, err := n.api.GetValidators(ctx, request)
	if err != nil {
		return nil, converted(ctx, err)
	}
	result := &ctypes.ResultValidators{BlockHeight: r.GetHeight(), Count: len(r.GetValidators()), Total: int(r.GetTotal())}
	for _, b := range r.GetValidators() {
		var encoded cmtproto.Validator
		if err := encoded.Unmarshal(b); err != nil {
			return nil, fmt.Errorf("%w: a validator does not decode: %w", ErrUnproved, err)
		}
		validator, err := types.ValidatorFromProto(&encoded)
		if err != nil {
			return nil, fmt.Errorf("%w: a validator does not decode: %w", ErrUnproved, err)
		}
		result.Validators = append(result.Validators, validator)
	}
	return result, nil
}

func heightOrLatest(height *int64) int64 {
	if height == nil {
		return 0
	}
	return *height
}
