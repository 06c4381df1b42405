package grpcserver

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/starling-kv/starling/api"
	"github.com/starling-kv/starling/app/event"
	"github.com/starling-kv/starling/tx"
)

// asked answers queries for an application.
type asked func(context.Context, *abci.RequestQuery) (*abci.ResponseQuery, error)

func listen(t *testing.T, query asked, edit func(*Options)) (*Server, api.NodeClient) {
	t.Helper()
	o := Options{Address: "127.0.0.1:0", Query: query, Logger: log.NewNopLogger()}
	if edit != nil {
		edit(&o)
	}
	s, err := Listen(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s, dial(t, s)
}

func dial(t *testing.T, s *Server) api.NodeClient {
	t.Helper()
	conn, err := grpc.NewClient(s.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return api.NewNodeClient(conn)
}

func TestCallsAreBounded(t *testing.T) {
	entered := make(chan struct{}, MaxCalls)
	metrics := prometheus.NewRegistry()
	s, first := listen(t, func(ctx context.Context, r *abci.RequestQuery) (*abci.ResponseQuery, error) {
		if string(r.Data) == "now" {
			return &abci.ResponseQuery{Height: 1}, nil
		}
		entered <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}, func(o *Options) { o.Metrics, o.timeout = metrics, 5*time.Minute })
	second := dial(t, s)
	waiting, end := context.WithCancel(t.Context())
	defer end()
	ended := make(chan error, MaxCalls)
	for i := range MaxCalls { // half of them on each connection: more do not fit on one
		client := []api.NodeClient{first, second}[i%2]
		go func() {
			_, err := client.Get(waiting, &api.GetRequest{Key: []byte("wait")})
			ended <- err
		}()
	}
	for range MaxCalls {
		<-entered
	}
	now := &api.GetRequest{Key: []byte("now")}
	_, err := dial(t, s).Get(t.Context(), now)
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.ErrorContains(t, err, "call another node")

	end()
	for range MaxCalls {
		require.Equal(t, codes.Canceled, status.Code(<-ended))
	}
	require.Eventually(t, func() bool { return s.calls.Taken() == 0 }, 5*time.Minute, time.Millisecond)
	_, err = first.Get(t.Context(), now)
	require.NoError(t, err)
	s.Close()
	for code, want := range map[string]int{"OK": 1, "Canceled": MaxCalls} {
		var m dto.Metric
		require.NoError(t, s.counted.WithLabelValues("starling.v1.Node/Get", code).Write(&m))
		require.Equal(t, want, int(m.GetCounter().GetValue()), code)
	}
}

// Callers from other machines leave places for other hosts, and for callers on this machine.
func TestStrangersLeavePlaces(t *testing.T) {
	s := &Server{o: Options{timeout: time.Minute}}
	from := func(ip string) error {
		ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: at(ip)})
		_, err := s.admit(ctx, &tap.Info{FullMethodName: api.Node_Get_FullMethodName})
		return err
	}
	strangers := 0
	for host := range 10 {
		for from(fmt.Sprintf("192.0.2.%d", host)) == nil {
			strangers++
		}
	}
	require.Equal(t, MaxCalls-localCalls, strangers)
	require.Equal(t, codes.ResourceExhausted, status.Code(from("192.0.2.10")))
	for range localCalls {
		require.NoError(t, from("127.0.0.1"))
	}
	require.Equal(t, codes.ResourceExhausted, status.Code(from("::1")))
}

func TestCloseEndsCalls(t *testing.T) {
	entered := make(chan struct{})
	s, client := listen(t, func(ctx context.Context, _ *abci.RequestQuery) (*abci.ResponseQuery, error) {
		close(entered)
		<-ctx.Done()
		return nil, ctx.Err()
	}, nil)
	ended := make(chan error)
	go func() {
		_, err := client.Get(t.Context(), &api.GetRequest{Key: []byte("k")})
		ended <- err
	}()
	<-entered
	s.Close()
	require.Error(t, <-ended)
}

// A client that does not read ends its call, not the server's memory.
func TestSlowReaders(t *testing.T) {
	events := event.Answer{Next: event.Token{Height: 2}, Head: 1, Least: 1}
	for range 16 {
		e := event.Event{Height: 1, Index: uint32(len(events.Events)), Tx: make([]byte, 32), Kind: event.Put, Key: []byte("k"), Value: make([]byte, 100_000)}
		events.Events = append(events.Events, e)
	}
	s, client := listen(t, func(_ context.Context, r *abci.RequestQuery) (*abci.ResponseQuery, error) {
		if r.Path != event.Path {
			return &abci.ResponseQuery{Value: make([]byte, 2<<20)}, nil
		}
		request, err := event.DecodeRequest(r.Data)
		if err != nil {
			return nil, err
		}
		answer := events
		for i := range answer.Events {
			answer.Events[i].Height = request.From.Height
		}
		answer.Next.Height, answer.Head = request.From.Height+1, request.From.Height
		return &abci.ResponseQuery{Value: answer.Encode()}, nil
	}, func(o *Options) { o.timeout = 100 * time.Millisecond })
	watch, err := client.Watch(t.Context(), &api.WatchRequest{FromHeight: 1})
	require.NoError(t, err)
	_, err = watch.Recv()
	require.NoError(t, err)
	require.Eventually(t, func() bool { return s.calls.Taken() == 0 }, time.Minute, time.Millisecond)
	for err == nil {
		_, err = watch.Recv()
	}
	require.Equal(t, codes.Canceled, status.Code(err))
}

func TestRefusals(t *testing.T) {
	for code, want := range map[tx.Code]codes.Code{
		tx.CodeUnknownPath: codes.Unimplemented, tx.CodeUnknownHeight: codes.OutOfRange, tx.CodeBadRequest: codes.InvalidArgument,
		tx.CodeUnreadable: codes.Unavailable, tx.CodeBusy: codes.ResourceExhausted, math.MaxUint32: codes.Unknown,
	} {
		_, client := listen(t, func(context.Context, *abci.RequestQuery) (*abci.ResponseQuery, error) {
			return &abci.ResponseQuery{Code: uint32(code), Codespace: tx.Codespace, Log: "because"}, nil
		}, nil)
		_, err := client.Get(t.Context(), &api.GetRequest{Key: []byte("k")})
		require.Equal(t, want, status.Code(err), code)
		require.ErrorContains(t, err, "because")
		_, err = client.GetRange(t.Context(), &api.GetRangeRequest{})
		require.Equal(t, want, status.Code(err), code)
		watch, err := client.Watch(t.Context(), &api.WatchRequest{})
		require.NoError(t, err)
		_, err = watch.Recv()
		require.Equal(t, want, status.Code(err), code)
		answer, err := client.Query(t.Context(), &api.QueryRequest{Path: "/p"})
		require.NoError(t, err, "the answer of a query has its refusal")
		require.Equal(t, uint32(code), answer.GetCode())
		require.Equal(t, "because", answer.GetLog())
	}

	_, client := listen(t, func(context.Context, *abci.RequestQuery) (*abci.ResponseQuery, error) {
		return nil, errors.New("the disk is gone")
	}, nil)
	_, err := client.Query(t.Context(), &api.QueryRequest{})
	require.ErrorContains(t, err, "the disk is gone")
	_, err = client.Get(t.Context(), &api.GetRequest{Height: -1})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	_, err = client.GetTransaction(t.Context(), &api.GetTransactionRequest{Hash: []byte("short")})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	_, err = client.Submit(t.Context(), &api.SubmitRequest{Transactions: [][]byte{make([]byte, MaxRequestBytes)}})
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "longer than MaxRequestBytes")

	// There is no CometBFT yet.
	for name, call := range map[string]func() error{
		"status": func() error { _, err := client.Status(t.Context(), &api.StatusRequest{}); return err },
		"submit": func() error {
			_, err := client.Submit(t.Context(), &api.SubmitRequest{Transactions: [][]byte{[]byte("a=1")}})
			return err
		},
		"header":     func() error { _, err := client.GetHeader(t.Context(), &api.GetHeaderRequest{}); return err },
		"validators": func() error { _, err := client.GetValidators(t.Context(), &api.GetValidatorsRequest{}); return err },
	} {
		require.Equal(t, codes.Unavailable, status.Code(call()), name)
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	s, first := listen(t, func(context.Context, *abci.RequestQuery) (*abci.ResponseQuery, error) {
		return &abci.ResponseQuery{}, nil
	}, func(o *Options) { o.MaxConnections = 1 })
	_, err := first.Get(t.Context(), &api.GetRequest{})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = dial(t, s).Get(ctx, &api.GetRequest{})
	require.Equal(t, codes.DeadlineExceeded, status.Code(err))
	_, err = first.Get(t.Context(), &api.GetRequest{})
	require.NoError(t, err)
}
