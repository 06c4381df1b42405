package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/statesync/catchup"
)

// newBlocksMetrics returns the progress of the blocks that a node fetches over the transport before
// CometBFT starts. All are 0 if it fetches none.
func newBlocksMetrics(view *catchup.View) prometheus.Collector {
	m := &statMetrics[catchup.Progress]{subsystem: "catchup", read: func() catchup.Progress {
		p, _ := view.Progress()
		return p
	}}
	gauge, counter, add := prometheus.GaugeValue, prometheus.CounterValue, m.add
	add(gauge, "active", "1 while this node fetches blocks over the transport and executes them, otherwise 0.", func(p catchup.Progress) float64 {
		if p.State == catchup.CatchUp {
			return 1
		}
		return 0
	})
	add(gauge, "height", "Height of the last block executed by the catch-up over the transport.", func(p catchup.Progress) float64 { return float64(p.Height) })
	add(gauge, "target_height", "Highest block that peers report with its commit.", func(p catchup.Progress) float64 { return float64(p.Target) })
	add(counter, "blocks_total", "Blocks fetched over the transport, verified and executed.", func(p catchup.Progress) float64 { return float64(p.Blocks) })
	add(counter, "bytes_total", "Bytes of blocks fetched over the transport, verified and executed.", func(p catchup.Progress) float64 { return float64(p.Bytes) })
	add(gauge, "bytes_per_second", "Catch-up rate over the last 15 s, in bytes per second.", func(p catchup.Progress) float64 { return float64(p.Rate) })
	add(gauge, "peers", "Peers that serve blocks to this node over the transport.", func(p catchup.Progress) float64 { return float64(p.Peers) })
	add(gauge, "peers_banned", "Peers banned for sending blocks that the validators did not sign.", func(p catchup.Progress) float64 { return float64(p.Banned) })
	return m
}
