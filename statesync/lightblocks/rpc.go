package lightblocks

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/cometbft/cometbft/light/provider"
	lighthttp "github.com/cometbft/cometbft/light/provider/http"
	rpchttp "github.com/cometbft/cometbft/rpc/client/http"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/transport"
)

// rpcPeer adapts the RPC server of a node to Peer.
type rpcPeer struct {
	provider.Provider
	id     transport.ID
	client *rpchttp.HTTP
}

// NewRPC returns a Peer that asks a CometBFT RPC server (host:port, or with a scheme such as
// https://). timeout limits one call; it is rounded down to seconds and is at least 1 s. The ID is
// the address. The server's identity is not authenticated and need not be, since its responses are
// verified. NewRPC does not connect.
func NewRPC(chainID, address string, timeout time.Duration) (Peer, error) {
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	client, err := rpchttp.NewWithTimeout(address, "/websocket", uint(max(timeout, time.Second)/time.Second))
	if err != nil {
		return nil, fmt.Errorf("RPC server %s: %w", address, err)
	}
	return &rpcPeer{Provider: lighthttp.NewWithClient(chainID, client), id: transport.ID(address), client: client}, nil
}

func (p *rpcPeer) ID() transport.ID { return p.id }

func (p *rpcPeer) ConsensusParams(ctx context.Context, height int64) (types.ConsensusParams, error) {
	res, err := p.client.ConsensusParams(ctx, &height)
	if err != nil {
		return types.ConsensusParams{}, fmt.Errorf("RPC server %s: %w", p.id, err)
	}
	return res.ConsensusParams, nil
}
