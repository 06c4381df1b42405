package comet

import (
	"sync"

	"github.com/cometbft/cometbft/blocksync"
	"github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/consensus"
	"github.com/cometbft/cometbft/mempool"
	cometnode "github.com/cometbft/cometbft/node"
	"github.com/cometbft/cometbft/p2p"
	"github.com/cometbft/cometbft/proxy"
	"github.com/cometbft/cometbft/state"
	"github.com/cometbft/cometbft/statesync"
	"github.com/prometheus/client_golang/prometheus"
)

// made has the metrics of CometBFT that this process has made, as func() *allMetrics, by madeFor.
var made sync.Map

// madeFor is what CometBFT's metrics are registered for.
type madeFor struct {
	registry           prometheus.Registerer
	namespace, chainID string
}

// allMetrics are the metrics of a CometBFT.
type allMetrics struct {
	m1 *consensus.Metrics
	m2 *p2p.Metrics
	m3 *mempool.Metrics
	m4 *state.Metrics
	m5 *proxy.Metrics
	m6 *blocksync.Metrics
	m7 *statesync.Metrics
}

// onceMetrics makes CometBFT's metrics only once in a process, for all its nodes of a chain,
// because they can neither be registered twice nor be unregistered.
func onceMetrics(c *config.InstrumentationConfig) cometnode.MetricsProvider {
	provider := cometnode.DefaultMetricsProvider(c)
	if !c.Prometheus {
		return provider
	}
	return func(chainID string) (*consensus.Metrics, *p2p.Metrics, *mempool.Metrics, *state.Metrics, *proxy.Metrics, *blocksync.Metrics, *statesync.Metrics) {
		once, _ := made.LoadOrStore(madeFor{prometheus.DefaultRegisterer, c.Namespace, chainID}, sync.OnceValue(func() *allMetrics {
			m := new(allMetrics)
			m.m1, m.m2, m.m3, m.m4, m.m5, m.m6, m.m7 = provider(chainID)
			return m
		}))
		m := once.(func() *allMetrics)() //nolint:forcetypeassert // only this function stores
		return m.m1, m.m2, m.m3, m.m4, m.m5, m.m6, m.m7
	}
}
