package node

import (
	"context"
	"errors"
	"fmt"
	"net"

	sm "github.com/cometbft/cometbft/state"
	"github.com/cometbft/cometbft/store"
	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/node/buildinfo"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/grpcserver"
)

// serveGRPC serves gRPC, if an address is configured. Until CometBFT runs, it answers queries only.
func (n *Node) serveGRPC(ctx context.Context) (err error) {
	address, rpc := n.config.App.GRPC.ListenAddress, n.config.CometBFT.RPC
	if address == "" {
		return nil
	}
	o := grpcserver.Options{
		Address: address, MaxConnections: rpc.GRPCMaxOpenConnections,
		Query: n.application.Query, Version: buildinfo.Read().Starling, Logger: n.log.With("module", "grpc"), Metrics: n.registry(),
	}
	if rpc.IsTLSEnabled() {
		o.CertFile, o.KeyFile = rpc.CertFile(), rpc.KeyFile()
	}
	n.grpc, err = grpcserver.Listen(ctx, o)
	switch {
	case errors.As(err, new(*net.OpError)):
		return config.AddressError("grpc.laddr", address, err)
	case err != nil:
		return config.Invalid(fmt.Errorf("gRPC cannot be served: %w", err))
	}
	n.log.Info("Serving gRPC", "address", n.grpc.Addr(), "tls", rpc.IsTLSEnabled())
	return nil
}

// useStores has the transport and gRPC use a new CometBFT and its stores; nil, nil, nil: none,
// before its databases are closed. It returns once the former ones are no longer used.
func (n *Node) useStores(blocks *store.BlockStore, states sm.Store, evidence func(cmttypes.Evidence) error) {
	n.serving.setStores(blocks, states, evidence)
	if blocks == nil {
		n.grpc.SetComet(nil)
		return
	}
	n.grpc.SetComet(n.instance.Comet())
}
