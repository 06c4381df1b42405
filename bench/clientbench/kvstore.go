package clientbench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	rpchttp "github.com/cometbft/cometbft/rpc/client/http"

	"github.com/starling-kv/starling/bench/network"
	"github.com/starling-kv/starling/node/config"
)

// kvstore is a network that takes the transactions of CometBFT's kvstore.
type kvstore struct {
	o       LatencyOptions
	net     *network.Network
	fault   fault // of the last validator
	clients []*rpchttp.HTTP
}

// kvstore starts a network of CometBFT's kvstore.
func (r *latencyRun) kvstore(ctx context.Context, s latencyStore, dir string) (store, error) {
	return r.startText(ctx, network.Options{
		Program: r.cometbft, Dir: dir, Validators: r.o.Validators, Delay: r.delay(s), AppState: struct{}{}, Last: r.fault.program, SlowLast: r.fault.delay,
		Init: func(_, dir string) []string { return []string{"init", "--home", dir} },
		Edit: func(c *cfg.Config) {
			c.ProxyApp = "persistent_kvstore"
			if s.network != "" {
				config.Tune(s.network, c, new(config.App))
			}
		},
	})
}

// text starts a network of Starling that takes kvstore's transactions.
func (r *latencyRun) text(ctx context.Context, s latencyStore, dir string) (store, error) {
	return r.startText(ctx, network.Options{
		Program: r.starlingd, Dir: dir, Validators: r.o.Validators, Delay: r.delay(s), AppState: network.Open,
		Init: initWith(string(s.network)),
	})
}

func (r *latencyRun) startText(ctx context.Context, o network.Options) (store, error) {
	edit := o.Edit
	o.Edit = func(c *cfg.Config) {
		if edit != nil {
			edit(c)
		}
		c.RPC.TimeoutBroadcastTxCommit = Patience // a busy machine may need more than the default
	}
	net, err := network.Start(ctx, o)
	if err != nil {
		return nil, err
	}
	k := &kvstore{o: r.o, net: net, fault: r.fault}
	for _, address := range r.fault.honest(net.RPCs()) {
		c, err := rpchttp.New(address, "/websocket")
		if err != nil {
			return nil, errors.Join(err, net.Stop())
		}
		k.clients = append(k.clients, c)
	}
	return k, nil
}

func (k *kvstore) load(context.Context) error { return nil }
func (k *kvstore) close() error               { return k.net.Stop() }

func (k *kvstore) run(ctx context.Context, what string, seed uint64) (Figures, error) {
	k.fault.begin(k.net)
	workers := k.o.Workers
	if what == opPutLoad {
		workers = loadWorkers
		seed += 1 << 32 // a node refuses a transaction that it has seen
	}
	work := make([]Operation, workers)
	for i := range work {
		c := k.clients[i%len(k.clients)]
		work[i] = func(ctx context.Context, random *rand.Rand) error {
			key, value := Key(random.IntN(k.o.Keys)), NewValue(random, valueBytes)
			res, err := c.BroadcastTxCommit(ctx, fmt.Appendf(nil, "%s=%s", key, value))
			if err == nil && res.TxResult.Code+res.CheckTx.Code != 0 {
				err = fmt.Errorf("a node refused a transaction: %s%s", res.CheckTx.Log, res.TxResult.Log)
			}
			return err
		}
	}
	measured := k.net
	if k.fault.paused {
		measured = nil // it does not answer
	}
	return repeatFigures(ctx, measured, work, seed, time.Duration(k.o.Seconds)*time.Second)
}
