package storagenode

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/rangemap"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// askTimeout limits the request to one storage node.
const askTimeout = 5 * time.Second

// RangeStatus is a storage node's report about a range that the configuration assigns to it.
type RangeStatus struct {
	Range   string `json:"range"`
	Node    string `json:"node"` // ID@host:port
	Oldest  int64  `json:"oldest"`
	Newest  int64  `json:"newest"`
	Durable int64  `json:"durable"`
	Needs   int64  `json:"needs"`
	Next    bool   `json:"next,omitempty"` // it will replace current ranges
	// Error is the reason why there is no report; "": there is one.
	Error string `json:"error,omitempty"`
}

// Ask queries all storage nodes in the home's storage nodes file for their ranges. The result is in
// the order of ranges and replicas.
func Ask(ctx context.Context, conf *config.Config) ([]RangeStatus, error) {
	nodes, err := config.LoadStorageNodes(conf.Home, conf.App.StorageNode.Ranges)
	if err != nil {
		return nil, err
	}
	dialer, err := NewDialer(conf)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	claims, failures := map[dsm.NodeID][]dsm.Claim{}, map[dsm.NodeID]error{}
	var all sync.WaitGroup
	for node, address := range nodes.Addresses {
		all.Go(func() {
			got, err := askClaims(ctx, dialer, address)
			mu.Lock()
			defer mu.Unlock()
			claims[node], failures[node] = got, err
		})
	}
	all.Wait()
	var rows []RangeStatus
	for s, next := range nodes.Ranges.All(nodes.Next) {
		for _, node := range s.Replicas {
			row := RangeStatus{Range: s.Range.String(), Node: nodes.Addresses[node].String(), Next: next, Error: "the node has no state of this range"}
			for _, c := range claims[node] {
				if c.Range.Equal(s.Range) {
					row.Oldest, row.Newest, row.Durable, row.Needs, row.Error = c.Oldest, c.Newest, c.Durable, c.Needs, ""
				}
			}
			if err := failures[node]; err != nil {
				row.Error = err.Error()
			}
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// NewDialer returns a dialer with a home's node key and chain.
func NewDialer(conf *config.Config) (transport.Dialer, error) {
	genesis, err := config.LoadGenesis(conf.CometBFT.GenesisFile())
	if err != nil {
		return nil, err
	}
	nodeKey, err := config.LoadNodeKey(conf.CometBFT)
	if err != nil {
		return nil, err
	}
	key, err := config.TransportKey(nodeKey)
	if err != nil {
		return nil, err
	}
	return tcp.NewDialer(tcp.Options{Key: key, ChainID: genesis.ChainID}), nil
}

func askClaims(ctx context.Context, dialer transport.Dialer, a transport.Address) ([]dsm.Claim, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	conn, err := dialer.Dial(ctx, a)
	if err != nil {
		return nil, fmt.Errorf("the node cannot be reached: %w", err)
	}
	defer conn.Close()
	return rangemap.Claims(ctx, conn)
}
