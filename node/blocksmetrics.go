package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-kv/starling/catchup"
)

// newBlocksMetrics returns the progress of the blocks that a node fetches over the transport before
// there is a CometBFT. They are 0 if there is none.
func newBlocksMetrics(view *catchup.View) prometheus.Collector {
	m := &statMetrics[catchup.Progress]{subsystem: "catchup", read: func() catchup.Progress {
		p, _ := view.Progress()
		return p
	}}
	gauge, counter, add := prometheus.GaugeValue, prometheus.CounterValue, m.add
	add(gauge, "active", "1 while this node fetches blocks over the transport and executes them, else 0.", func(p catchup.Progress) float64 {
		if p.State == catchup.CatchUp {
			return 1
		}
		return 0
	})
	add(gauge, "height", "Height of the last block that was executed so.", func(p catchup.Progress) float64 { return float64(p.Height) })
	add(gauge, "target_height", "Height of the last block that peers claim to have, with its commit.", func(p catchup.Progress) float64 { return float64(p.Target) })
	add(counter, "blocks_total", "Blocks that were fetched over the transport, verified and executed.", func(p catchup.Progress) float64 { return float64(p.Blocks) })
	add(counter, "bytes_total", "Bytes of these blocks.", func(p catchup.Progress) float64 { return float64(p.Bytes) })
	add(gauge, "bytes_per_second", "Speed of the last 15 seconds of it.", func(p catchup.Progress) float64 { return float64(p.Rate) })
	add(gauge, "peers", "Peers that answer requests for blocks.", func(p catchup.Progress) float64 { return float64(p.Peers) })
	add(gauge, "peers_banned", "Peers that sent blocks which the validators did not sign.", func(p catchup.Progress) float64 { return float64(p.Banned) })
	return m
}
