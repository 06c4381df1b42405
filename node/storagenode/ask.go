package storagenode

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/internal/sleep"
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
	claims, failures := askAll(ctx, dialer, nodes.Addresses, rangemap.Claims)
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
	return askOne(ctx, dialer, a, rangemap.Claims)
}

// question asks a storage node for something.
type question[T any] func(context.Context, transport.Conn) (T, error)

// askAll asks nodes concurrently.
func askAll[T any](ctx context.Context, dialer transport.Dialer, nodes map[dsm.NodeID]transport.Address, ask question[T]) (map[dsm.NodeID]T, map[dsm.NodeID]error) {
	var mu sync.Mutex
	answers, failures := map[dsm.NodeID]T{}, map[dsm.NodeID]error{}
	var all sync.WaitGroup
	for node, address := range nodes {
		all.Go(func() {
			got, err := askOne(ctx, dialer, address, ask)
			mu.Lock()
			defer mu.Unlock()
			answers[node], failures[node] = got, err
		})
	}
	all.Wait()
	return answers, failures
}

func askOne[T any](ctx context.Context, dialer transport.Dialer, a transport.Address, ask question[T]) (answer T, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	conn, err := dialer.Dial(ctx, a)
	if err != nil {
		return answer, fmt.Errorf("the node cannot be reached: %w", err)
	}
	defer conn.Close()
	return ask(ctx, conn)
}

// Balance asks all storage nodes in the home's storage nodes file, and spare ones (ID@host:port),
// for the sizes and the traffic of their ranges, twice with a pause, and proposes changes.
func Balance(ctx context.Context, conf *config.Config, spare []string, pause time.Duration) (b rangemap.Balance, err error) {
	nodes, err := config.LoadStorageNodes(conf.Home, conf.App.StorageNode.Ranges)
	if err != nil {
		return b, err
	}
	dialer, err := NewDialer(conf)
	if err != nil {
		return b, err
	}
	all := maps.Clone(nodes.Addresses)
	var others []transport.Address
	for _, text := range spare {
		a, err := transport.ParseAddress(text)
		if err != nil || a.ID == "" {
			return b, config.Invalid(fmt.Errorf("--nodes has %q, it must be ID@HOST:PORT", text))
		}
		if _, known := all[dsm.NodeID(a.ID)]; !known {
			all[dsm.NodeID(a.ID)], others = a, append(others, a)
		}
	}
	before, _ := askAll(ctx, dialer, all, rangemap.Loads)
	began := time.Now()
	if err := sleep.For(ctx, pause); err != nil {
		return b, err
	}
	after, failures := askAll(ctx, dialer, all, rangemap.Loads)
	reports := map[dsm.NodeID]rangemap.Report{}
	for node := range all {
		r := rangemap.Report{Loads: after[node]}
		if err := failures[node]; err != nil {
			r.Error = err.Error()
		}
		for i := range r.Loads {
			subtract(&r.Loads[i], before[node])
		}
		reports[node] = r
	}
	return rangemap.Propose(nodes, others, reports, time.Since(began)), nil
}

// subtract subtracts the traffic of earlier loads. The traffic of a range that was not there, or
// that was opened again meanwhile, is unknown: 0.
func subtract(l *dsm.Load, earlier []dsm.Load) {
	i := slices.IndexFunc(earlier, func(e dsm.Load) bool { return e.Range.Equal(l.Range) })
	if i < 0 || earlier[i].Reads > l.Reads || earlier[i].Changes > l.Changes {
		l.Reads, l.Changes = 0, 0
		return
	}
	l.Reads, l.Changes = l.Reads-earlier[i].Reads, l.Changes-earlier[i].Changes
}
