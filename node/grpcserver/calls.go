package grpcserver

import (
	"context"
	"crypto/sha256"
	"errors"
	"strings"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/proto/tendermint/crypto"
	"github.com/cometbft/cometbft/rpc/core"
	rpctypes "github.com/cometbft/cometbft/rpc/jsonrpc/types"
	cmttypes "github.com/cometbft/cometbft/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/starling-kv/starling/api"
	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/app/event"
	"github.com/starling-kv/starling/app/result"
	"github.com/starling-kv/starling/tx"
)

// pollWait is how long the application is asked to wait at a time: it waits for 5 s at most.
const pollWait = 5 * time.Second

func (s *Server) Status(_ context.Context, _ *api.StatusRequest) (response *api.StatusResponse, err error) {
	err = s.withComet(func(rpc *core.Environment) error {
		r, err := rpc.Status(new(rpctypes.Context))
		if err != nil {
			return err
		}
		response = &api.StatusResponse{
			ChainId: r.NodeInfo.Network, NodeId: string(r.NodeInfo.ID()), Moniker: r.NodeInfo.Moniker, Version: s.o.Version,
			OldestHeight: r.SyncInfo.EarliestBlockHeight, LatestHeight: r.SyncInfo.LatestBlockHeight,
			LatestAppHash: r.SyncInfo.LatestAppHash, LatestBlockHash: r.SyncInfo.LatestBlockHash,
			LatestTimeNs: r.SyncInfo.LatestBlockTime.UnixNano(), CatchingUp: r.SyncInfo.CatchingUp,
		}
		return nil
	})
	return response, err
}

func (s *Server) Get(ctx context.Context, r *api.GetRequest) (*api.GetResponse, error) {
	answer, err := s.ask(ctx, &abci.RequestQuery{Path: app.PathKey, Data: r.GetKey(), Height: r.GetHeight(), Prove: r.GetProve()})
	if err != nil {
		return nil, err
	}
	return &api.GetResponse{Found: len(answer.Value) > 0, Value: answer.Value, Height: answer.Height, Proof: proofOf(answer.ProofOps)}, nil
}

func (s *Server) GetRange(ctx context.Context, r *api.GetRangeRequest) (*api.GetRangeResponse, error) {
	request := app.RangeRequest{Start: r.GetStart(), End: r.GetEnd(), Limit: r.GetLimit(), KeysOnly: r.GetKeysOnly(), Reverse: r.GetReverse()}
	data, err := request.Marshal()
	if err != nil {
		return nil, err
	}
	answer, err := s.ask(ctx, &abci.RequestQuery{Path: app.PathRange, Data: data, Height: r.GetHeight(), Prove: r.GetProve()})
	if err != nil {
		return nil, err
	}
	var page app.RangeResponse
	if err := page.Unmarshal(answer.Value); err != nil {
		return nil, err
	}
	response := &api.GetRangeResponse{Next: page.Next, Height: answer.Height, Proof: proofOf(answer.ProofOps), Entries: make([]*api.Entry, len(page.Entries))}
	for i, e := range page.Entries {
		response.Entries[i] = &api.Entry{Key: e.Key, Value: e.Value, ValueHash: e.ValueHash, ValueBytes: e.ValueBytes}
	}
	return response, nil
}

func (s *Server) Query(ctx context.Context, r *api.QueryRequest) (*api.QueryResponse, error) {
	answer, err := s.query(ctx, &abci.RequestQuery{Path: r.GetPath(), Data: r.GetData(), Height: r.GetHeight(), Prove: r.GetProve()})
	if err != nil {
		return nil, err
	}
	return &api.QueryResponse{
		Code: answer.Code, Codespace: answer.Codespace, Log: answer.Log, Key: answer.Key, Value: answer.Value, Height: answer.Height,
		Proof: proofOf(answer.ProofOps),
	}, nil
}

// query asks the application, which reports a refusal in its answer.
func (s *Server) query(ctx context.Context, r *abci.RequestQuery) (*abci.ResponseQuery, error) {
	if r.Height < 0 {
		return nil, status.Errorf(codes.InvalidArgument, "height %d is negative", r.Height)
	}
	return s.o.Query(ctx, r)
}

// ask is query, with a refusal as an error.
func (s *Server) ask(ctx context.Context, r *abci.RequestQuery) (*abci.ResponseQuery, error) {
	answer, err := s.query(ctx, r)
	if err != nil || answer.Code == 0 {
		return answer, err
	}
	code := codes.Unknown
	switch tx.Code(answer.Code) {
	case tx.CodeUnknownPath:
		code = codes.Unimplemented
	case tx.CodeUnknownHeight:
		code = codes.OutOfRange
	case tx.CodeBadRequest:
		code = codes.InvalidArgument
	case tx.CodeUnreadable:
		code = codes.Unavailable
	case tx.CodeBusy:
		code = codes.ResourceExhausted
	}
	return nil, status.Error(code, answer.Log)
}

func proofOf(ops *crypto.ProofOps) []*api.ProofOp {
	if ops == nil {
		return nil
	}
	proof := make([]*api.ProofOp, len(ops.Ops))
	for i, op := range ops.Ops {
		proof[i] = &api.ProofOp{Type: op.Type, Key: op.Key, Data: op.Data}
	}
	return proof
}

func (s *Server) Submit(ctx context.Context, r *api.SubmitRequest) (*api.SubmitResponse, error) {
	until := deadline(r.GetWaitMs())
	response := &api.SubmitResponse{Results: make([]*api.Result, len(r.GetTransactions()))}
	for i, raw := range r.GetTransactions() {
		submitted, err := s.submit(ctx, raw)
		if err != nil {
			return nil, err
		}
		response.Results[i] = submitted
	}
	if r.GetWaitMs() == 0 {
		return response, nil
	}
	for _, accepted := range response.GetResults() {
		if accepted.GetError() != "" || accepted.GetCode() != 0 {
			continue
		}
		executed, err := s.executed(ctx, accepted.GetHash(), until)
		switch {
		case status.Code(err) == codes.ResourceExhausted: // the client can ask for the others
			return response, nil
		case err != nil:
			return nil, err
		case executed != nil:
			accepted.Height, accepted.Code, accepted.Codespace = executed.GetHeight(), executed.GetCode(), executed.GetCodespace()
			accepted.Log, accepted.Data = executed.GetLog(), executed.GetData()
		}
	}
	return response, nil
}

// submit passes a transaction to the mempool. The error is about the node, not the transaction.
func (s *Server) submit(ctx context.Context, raw cmttypes.Tx) (*api.Result, error) {
	submitted := &api.Result{Hash: raw.Hash()}
	err := s.withComet(func(rpc *core.Environment) error {
		r, err := rpc.BroadcastTxSync(new(rpctypes.Context), raw)
		switch {
		case errors.Is(err, core.ErrEndpointClosedCatchingUp):
			return status.Error(codes.FailedPrecondition, err.Error())
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			submitted.Error = err.Error()
		default:
			submitted.Code, submitted.Codespace, submitted.Log = r.Code, r.Codespace, r.Log
		}
		return nil
	})
	return submitted, err
}

func deadline(ms uint32) time.Time { return time.Now().Add(time.Duration(ms) * time.Millisecond) }

// executed waits until a transaction is executed; nil: it was not until then.
func (s *Server) executed(ctx context.Context, hash []byte, until time.Time) (*api.Result, error) {
	for {
		left := max(time.Until(until), 0)
		request := result.Request{ID: [sha256.Size]byte(hash), WaitMS: uint32(min(left, pollWait).Milliseconds())}
		answer, err := s.ask(ctx, &abci.RequestQuery{Path: result.Path, Data: request.Encode()})
		if err != nil {
			return nil, err
		}
		if len(answer.Value) > 0 {
			var found abci.TxResult
			if err := found.Unmarshal(answer.Value); err != nil {
				return nil, err
			}
			return resultOf(hash, found.Height, &found.Result), nil
		}
		if left == 0 || ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

func resultOf(hash []byte, height int64, r *abci.ExecTxResult) *api.Result {
	return &api.Result{Hash: hash, Height: height, Code: r.Code, Codespace: r.Codespace, Log: r.Log, Data: r.Data}
}

func (s *Server) GetTransaction(ctx context.Context, r *api.GetTransactionRequest) (*api.GetTransactionResponse, error) {
	if len(r.GetHash()) != sha256.Size {
		return nil, status.Errorf(codes.InvalidArgument, "a transaction's hash has %d bytes, this one has %d", sha256.Size, len(r.GetHash()))
	}
	found, err := s.executed(ctx, r.GetHash(), deadline(r.GetWaitMs()))
	if err != nil || found != nil {
		return &api.GetTransactionResponse{Result: found}, err
	}
	// It may have been executed long ago, or before the last start.
	err = s.withComet(func(rpc *core.Environment) error {
		indexed, err := rpc.Tx(new(rpctypes.Context), r.GetHash(), false)
		switch {
		case err == nil:
			found = resultOf(r.GetHash(), indexed.Height, &indexed.TxResult)
			return nil
		case strings.Contains(err.Error(), "not found"): // rpc/core/tx.go
			return status.Error(codes.NotFound, err.Error())
		default:
			return status.Error(codes.FailedPrecondition, err.Error()) // no index
		}
	})
	return &api.GetTransactionResponse{Result: found}, err
}

func (s *Server) Watch(r *api.WatchRequest, stream api.Node_WatchServer) error {
	ctx := stream.Context()
	finish, _ := ctx.Value(end{}).(context.CancelFunc)
	request := event.Request{
		From: event.Token{Height: r.GetFromHeight(), Index: r.GetFromIndex()}, Keys: event.Keys{Start: r.GetStart(), End: r.GetEnd()},
		Previous: r.GetPrevious(), WaitMS: uint32(pollWait.Milliseconds()),
	}
	for {
		answer, err := s.ask(ctx, &abci.RequestQuery{Path: event.Path, Data: request.Encode()})
		if err != nil {
			return err
		}
		a, err := event.DecodeAnswer(answer.Value, &request)
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case a.Compacted(request.From):
			return status.Errorf(codes.OutOfRange, "the events from %v on are compacted: the lowest height kept here is %d", request.From, a.Least)
		case a.Next == request.From:
			continue
		}
		response := &api.WatchResponse{Events: make([]*api.Event, len(a.Events)), NextHeight: a.Next.Height, NextIndex: a.Next.Index}
		for i, e := range a.Events {
			response.Events[i] = &api.Event{
				Height: e.Height, Index: e.Index, TxHash: e.Tx, Kind: e.Kind, Key: e.Key, Value: e.Value, Previous: e.Previous, Omitted: e.Omitted,
			}
		}
		slow := time.AfterFunc(s.o.timeout, finish)
		err = stream.Send(response)
		slow.Stop()
		if err != nil {
			return err
		}
		request.From = a.Next
	}
}

func (s *Server) GetHeader(_ context.Context, r *api.GetHeaderRequest) (response *api.GetHeaderResponse, err error) {
	err = s.withComet(func(rpc *core.Environment) error {
		c, err := rpc.Commit(new(rpctypes.Context), heightOf(r.GetHeight()))
		if err != nil {
			return status.Error(codes.OutOfRange, err.Error())
		}
		if c == nil { // rpc/core/blocks.go: the block store does not have the header
			return status.Errorf(codes.OutOfRange, "this node does not have the header of height %d", r.GetHeight())
		}
		encoded, err := c.ToProto().Marshal()
		response = &api.GetHeaderResponse{SignedHeader: encoded}
		return err
	})
	return response, err
}

func (s *Server) GetValidators(_ context.Context, r *api.GetValidatorsRequest) (response *api.GetValidatorsResponse, err error) {
	page, perPage := int(max(r.GetPage(), 1)), int(r.GetPerPage())
	err = s.withComet(func(rpc *core.Environment) error {
		v, err := rpc.Validators(new(rpctypes.Context), heightOf(r.GetHeight()), &page, &perPage)
		if err != nil {
			return status.Error(codes.OutOfRange, err.Error())
		}
		response = &api.GetValidatorsResponse{Height: v.BlockHeight, Total: uint32(v.Total)}
		for _, validator := range v.Validators {
			p, err := validator.ToProto()
			if err != nil {
				return err
			}
			encoded, err := p.Marshal()
			if err != nil {
				return err
			}
			response.Validators = append(response.Validators, encoded)
		}
		return nil
	})
	return response, err
}

// heightOf returns a height as CometBFT's methods take it; nil: the latest.
func heightOf(height int64) *int64 {
	if height == 0 {
		return nil
	}
	return &height
}
