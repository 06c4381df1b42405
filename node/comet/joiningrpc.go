package comet

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	cometnode "github.com/cometbft/cometbft/node"
	"github.com/cometbft/cometbft/rpc/core"
	"github.com/cometbft/cometbft/rpc/jsonrpc/server"
)

// joiningRoutes are the calls that a node serves while it joins. An accepted transaction would be
// lost with the mempool, and an event subscription with its connection.
var joiningRoutes = []string{"health", "status", "net_info", "genesis", "genesis_chunked", "abci_info", "consensus_params"}

// joiningRPC serves RPC for the joining CometBFT. After that CometBFT is replaced, its own server
// would keep serving stale responses on open connections. Close ends them.
type joiningRPC struct {
	listeners []*closingListener
	wg        sync.WaitGroup
}

// serveJoining listens on the addresses of rpc.laddr and serves joiningRoutes there.
func serveJoining(comet *cometnode.Node, settings *cfg.RPCConfig, logger log.Logger) (*joiningRPC, error) {
	env, err := comet.ConfigureRPC()
	if err != nil {
		return nil, fmt.Errorf("rpc: %w", err)
	}
	routes, all := core.RoutesMap{}, env.GetRoutes()
	for _, name := range joiningRoutes {
		routes[name] = all[name]
	}
	r := new(joiningRPC)
	mux := http.NewServeMux()
	server.RegisterRPCFuncs(mux, routes, logger)
	config := server.DefaultConfig()
	config.MaxRequestBatchSize, config.MaxOpenConnections = settings.MaxRequestBatchSize, settings.MaxOpenConnections
	config.MaxBodyBytes, config.MaxHeaderBytes = settings.MaxBodyBytes, settings.MaxHeaderBytes
	for _, address := range strings.FieldsFunc(settings.ListenAddress, func(c rune) bool { return c == ',' || c == ' ' }) {
		l, err := server.Listen(address, config.MaxOpenConnections)
		if err != nil {
			r.Close()
			return nil, fmt.Errorf("rpc.laddr %s: %w", address, err)
		}
		listener := &closingListener{Listener: l}
		listener.mu.open = map[net.Conn]struct{}{}
		r.listeners = append(r.listeners, listener)
		r.wg.Go(func() {
			var err error
			if settings.IsTLSEnabled() {
				err = server.ServeTLS(listener, mux, settings.CertFile(), settings.KeyFile(), logger, config)
			} else {
				err = server.Serve(listener, mux, logger, config)
			}
			logger.Info("RPC for the join ended", "reason", err)
		})
	}
	return r, nil
}

// Close ends all connections and frees the addresses. A nil *joiningRPC has none.
func (r *joiningRPC) Close() {
	if r == nil {
		return
	}
	for _, l := range r.listeners {
		_ = l.Close() // the only possible error is that it is already closed
	}
	r.wg.Wait()
}

// closingListener closes its accepted connections when it is closed.
type closingListener struct {
	net.Listener
	mu struct {
		sync.Mutex
		open   map[net.Conn]struct{} // accepted and not closed yet
		closed bool
	}
}

func (l *closingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		conn.Close()
		return nil, net.ErrClosed
	}
	l.mu.open[conn] = struct{}{}
	return &trackedConn{conn, l}, nil
}

func (l *closingListener) Close() error {
	err := l.Listener.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.closed = true
	for conn := range l.mu.open {
		conn.Close()
	}
	clear(l.mu.open)
	return err
}

// trackedConn removes itself from its listener's connections when it is closed.
type trackedConn struct {
	net.Conn
	listener *closingListener
}

func (c *trackedConn) Close() error {
	c.listener.mu.Lock()
	delete(c.listener.mu.open, c.Conn)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}
