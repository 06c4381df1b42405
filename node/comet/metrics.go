package comet

import (
	"sync"

	"github.com/cometbft/cometbft/blocksync"
	"github.com/cometbft/cometbft/consensus"
	"github.com/cometbft/cometbft/mempool"
	cometnode "github.com/cometbft/cometbft/node"
	"github.com/cometbft/cometbft/p2p"
	"github.com/cometbft/cometbft/proxy"
	"github.com/cometbft/cometbft/state"
	"github.com/cometbft/cometbft/statesync"
)

// onceMetrics makes CometBFT's metrics only once, because they cannot be registered twice.
func onceMetrics(provider cometnode.MetricsProvider) cometnode.MetricsProvider {
	var (
		once sync.Once
		m1   *consensus.Metrics
		m2   *p2p.Metrics
		m3   *mempool.Metrics
		m4   *state.Metrics
		m5   *proxy.Metrics
		m6   *blocksync.Metrics
		m7   *statesync.Metrics
	)
	return func(chainID string) (*consensus.Metrics, *p2p.Metrics, *mempool.Metrics, *state.Metrics, *proxy.Metrics, *blocksync.Metrics, *statesync.Metrics) {
		once.Do(func() { m1, m2, m3, m4, m5, m6, m7 = provider(chainID) })
		return m1, m2, m3, m4, m5, m6, m7
	}
}
