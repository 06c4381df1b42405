package grpcserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/libs/log"
	cometnode "github.com/cometbft/cometbft/node"
	"github.com/cometbft/cometbft/rpc/core"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/starling-kv/starling/api"
	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/internal/slots"
)

const (
	// MaxRequestBytes limits a request: the largest transaction fits.
	MaxRequestBytes = 4 << 20
	// MaxCalls limits the calls in progress, over all connections, and so the memory of requests
	// and responses. localCalls of them are for callers on this machine, so that strangers cannot
	// keep its operator out.
	MaxCalls   = 1024
	localCalls = 128
	// maxStreams limits the calls in progress on one connection.
	maxStreams = MaxCalls / 2
	// callTimeout limits a call, including the time in which the client reads the response. In a
	// watch it limits one response.
	callTimeout = 30 * time.Second
	// A connection without calls is closed after idleTimeout, and one that does not answer a ping
	// after pingEvery and pingTimeout.
	idleTimeout            = 10 * time.Minute
	pingEvery, pingTimeout = time.Minute, 20 * time.Second
	// window is the number of bytes that may be in flight to the server, on a connection and in a
	// call. gRPC's default measures the connection, by a ping for nearly every call.
	window = 1 << 20
	// workers are the goroutines that gRPC keeps for calls. A call beyond them has one of its own,
	// whose stack grows first: a fifth of the processor time of a get with a proof.
	workers = 64
	// minPing is how often a client may send pings.
	minPing = 5 * time.Second
)

// Options configures a Server.
type Options struct {
	// Address is the address to listen on, host:port.
	Address string
	// CertFile and KeyFile are PEM files for TLS; "": no TLS.
	CertFile, KeyFile string
	// MaxConnections limits the connections; 0: no limit.
	MaxConnections int

	// Query answers ABCI queries. It is called concurrently.
	Query   func(context.Context, *abci.RequestQuery) (*abci.ResponseQuery, error)
	Version string // of the program
	Logger  log.Logger
	Metrics prometheus.Registerer // nil: none

	timeout time.Duration // for tests; 0: callTimeout
}

// Server serves gRPC. A nil *Server does nothing.
type Server struct {
	api.UnimplementedNodeServer
	o        Options
	listener net.Listener
	grpc     *grpc.Server
	serving  sync.WaitGroup
	calls    slots.Slots[netip.Prefix] // by host
	counted  *prometheus.CounterVec

	// comet guards the CometBFT: calls hold it for reading while they use it.
	comet struct {
		sync.RWMutex
		rpc *core.Environment // its methods are CometBFT's RPC; nil: there is none
	}
}

// Listen starts a server. Until SetComet it answers only queries.
func Listen(ctx context.Context, o Options) (*Server, error) {
	o.timeout = cmp.Or(o.timeout, callTimeout)
	s := &Server{o: o}
	options := []grpc.ServerOption{
		grpc.MaxConcurrentStreams(maxStreams), grpc.MaxRecvMsgSize(MaxRequestBytes), grpc.WaitForHandlers(true),
		grpc.NumStreamWorkers(workers),
		grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window),
		grpc.InTapHandle(s.admit), grpc.UnaryInterceptor(s.unary), grpc.StreamInterceptor(s.stream),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleTimeout, Time: pingEvery, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
	}
	if o.CertFile != "" {
		tls, err := credentials.NewServerTLSFromFile(o.CertFile, o.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("rpc.tls_cert_file and rpc.tls_key_file: %w", err)
		}
		options = append(options, grpc.Creds(tls))
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", o.Address)
	if err != nil {
		return nil, err
	}
	if err := s.register(o.Metrics); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	s.listener = listener
	if o.MaxConnections > 0 {
		s.listener = netutil.LimitListener(listener, o.MaxConnections)
	}
	s.grpc = grpc.NewServer(options...)
	api.RegisterNodeServer(s.grpc, s)
	reflection.Register(s.grpc)
	s.serving.Go(func() { _ = s.grpc.Serve(s.listener) }) // Close ends it
	return s, nil
}

// Addr returns the listening address, host:port.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Close ends all calls and connections. Nothing of Options is called after it returns.
func (s *Server) Close() {
	if s == nil {
		return
	}
	s.grpc.Stop()
	s.serving.Wait()
	if s.o.Metrics != nil {
		s.o.Metrics.Unregister(s.counted)
	}
}

// SetComet sets the CometBFT that the server uses; nil: none. It returns once the previous one is
// no longer used.
func (s *Server) SetComet(comet *cometnode.Node) {
	if s == nil {
		return
	}
	s.comet.Lock()
	defer s.comet.Unlock()
	s.comet.rpc = nil
	if comet == nil {
		return
	}
	rpc, err := comet.ConfigureRPC()
	if err != nil {
		s.o.Logger.Error("The gRPC endpoint answers only queries", "err", err)
		return
	}
	s.comet.rpc = rpc
}

// withComet calls f with the CometBFT.
func (s *Server) withComet(f func(*core.Environment) error) error {
	s.comet.RLock()
	defer s.comet.RUnlock()
	if s.comet.rpc == nil {
		return status.Error(codes.Unavailable, "the node is starting: ask again later, or ask another node")
	}
	return f(s.comet.rpc)
}

// end is the key of a call's context.CancelFunc in its context.
type end struct{}

// admit admits a call before its request is read. A call ends with its context even if the client
// does not read the response.
func (s *Server) admit(ctx context.Context, info *tap.Info) (context.Context, error) {
	var caller net.Addr
	if p, ok := peer.FromContext(ctx); ok {
		caller = p.Addr
	}
	host, local := hostOf(caller)
	var release func()
	if local {
		release = s.calls.TakeAny(MaxCalls)
	} else {
		release = s.calls.Take(host, MaxCalls-localCalls)
	}
	if release == nil {
		return nil, status.Error(codes.ResourceExhausted, "too many calls are in progress: call again later, or call another node")
	}
	ctx = app.ForClient(ctx, host.String())
	var limited context.Context
	var cancel context.CancelFunc
	if info.FullMethodName == api.Node_Watch_FullMethodName {
		limited, cancel = context.WithCancel(ctx)
		limited = context.WithValue(limited, end{}, cancel)
	} else {
		limited, cancel = context.WithTimeout(ctx, s.o.timeout)
	}
	context.AfterFunc(ctx, func() { // gRPC cancels it when the call has ended
		release()
		cancel()
	})
	return limited, nil
}

func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	response, err := handler(ctx, req)
	return response, s.ended(info.FullMethod, err)
}

func (s *Server) stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return s.ended(info.FullMethod, handler(server, stream))
}

// ended counts a call, and converts its error to one of gRPC.
func (s *Server) ended(method string, err error) error {
	if _, is := status.FromError(err); !is {
		switch {
		case errors.Is(err, context.Canceled):
			err = status.Error(codes.Canceled, err.Error())
		case errors.Is(err, context.DeadlineExceeded):
			err = status.Error(codes.DeadlineExceeded, err.Error())
		default:
			err = status.Error(codes.Unknown, err.Error())
		}
	}
	if s.counted != nil {
		s.counted.WithLabelValues(method[1:], status.Code(err).String()).Inc()
	}
	return err
}

// register registers the metrics. The labels have few values: gRPC calls interceptors only for
// methods that exist.
func (s *Server) register(metrics prometheus.Registerer) error {
	if metrics == nil {
		return nil
	}
	s.counted = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "starling", Subsystem: "grpc", Name: "calls_total", Help: "Calls of the gRPC endpoint that have ended.",
	}, []string{"method", "code"})
	return metrics.Register(s.counted)
}
