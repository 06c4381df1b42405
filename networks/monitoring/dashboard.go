// Package monitoring holds the configuration of Prometheus and Grafana for a network of nodes:
// targets, alerts and a dashboard.
//
//	nodes ──/metrics──► prometheus.yml ──► rules/starling.yml (alerts)
//	                          │
//	                          └──► starling.json: panels of this package, written by `go generate ./networks/monitoring`
//
// Tests run promtool on prometheus.yml and the rules, and every query of the dashboard against a
// Prometheus that scrapes real nodes.
package monitoring

import "encoding/json"

//go:generate go test -run ^TestDashboardIsWritten$ -update .

// Panel is one graph of the dashboard.
type Panel struct {
	Title   string
	Help    string
	Unit    string // one of Grafana's units
	Queries []Query
}

// Query is one line of a graph, or several of one kind.
type Query struct {
	Expr   string // $instance: the selected nodes; $__rate_interval: Grafana's
	Legend string
	// Rare is set if the series may be absent in a healthy network in which no node joins.
	Rare bool
}

// Row is a titled group of panels.
type Row struct {
	Title  string
	Panels []Panel
}

const node = `{{instance}}`

// one returns a query with one line per node.
func one(expr string) []Query { return []Query{{Expr: expr, Legend: node}} }

// Rows returns the dashboard.
func Rows() []Row {
	return []Row{
		{"Chain", []Panel{
			{"Height", "The last block that a node has executed. In a healthy network the lines coincide.", "none",
				one(`starling_app_height{instance=~"$instance"}`)},
			{"Blocks behind the best node", "", "none",
				one(`scalar(max(starling_app_height)) - starling_app_height{instance=~"$instance"}`)},
			{"Time between blocks", "", "s", []Query{
				{Expr: `sum by (instance) (rate(cometbft_consensus_block_interval_seconds_sum{instance=~"$instance"}[$__rate_interval])) / ` +
					`sum by (instance) (rate(cometbft_consensus_block_interval_seconds_count{instance=~"$instance"}[$__rate_interval]))`, Legend: node},
			}},
			{"Transactions", "Transactions per second, by result code; 0: success.", "ops", []Query{
				{Expr: `sum by (code) (rate(starling_app_transactions_total{instance=~"$instance"}[$__rate_interval])) / ` +
					`scalar(count(starling_app_height{instance=~"$instance"}))`, Legend: "code {{code}}", Rare: true},
			}},
			{"Voting power that does not sign", "Share of the voting power that did not sign. At one third the chain halts.", "percentunit",
				one(`cometbft_consensus_missing_validators_power{instance=~"$instance"} / cometbft_consensus_validators_power`)},
			{"Rounds", "Rounds above 0: the first proposer of a height was late, or its proposal was refused.", "none",
				one(`cometbft_consensus_rounds{instance=~"$instance"}`)},
			{"Pending transactions", "", "none", one(`cometbft_mempool_size{instance=~"$instance"}`)},
			{"Peers", "", "none", one(`cometbft_p2p_peers{instance=~"$instance"}`)},
		}},
		{"State", []Panel{
			{"Keys", "", "short", one(`starling_app_keys{instance=~"$instance"}`)},
			{"Bytes", "Total bytes of all leaf records.", "bytes", one(`starling_app_bytes{instance=~"$instance"}`)},
			{"Time of a commit", "Time to hand a block's state to the flusher; includes waits for the disk if its backlog is too large.", "s", []Query{
				{Expr: `histogram_quantile(0.5, sum by (le) (rate(starling_app_commit_seconds_bucket{instance=~"$instance"}[$__rate_interval])))`,
					Legend: "p50"},
				{Expr: `histogram_quantile(0.99, sum by (le) (rate(starling_app_commit_seconds_bucket{instance=~"$instance"}[$__rate_interval])))`,
					Legend: "p99"},
			}},
			{"Memory of the tree", "Memory slabs of inner nodes and leaves.", "bytes",
				one(`starling_app_tree_node_bytes{instance=~"$instance"} + starling_app_tree_leaf_bytes`)},
			{"Held by older versions", "Nodes that exist only for queries, pruning_keep_recent and snapshots.", "short",
				one(`starling_app_tree_held_nodes{instance=~"$instance"}`)},
			{"Versions in use", "", "none", one(`starling_app_tree_versions{instance=~"$instance"}`)},
		}},
		{"Disk", []Panel{
			{"Blocks not on disk yet", "The flusher's backlog.", "none", one(`starling_storage_lag_blocks{instance=~"$instance"}`)},
			{"Age of the oldest block not on disk", "", "s", one(`starling_storage_lag_seconds{instance=~"$instance"}`)},
			{"Bytes not on disk yet", "", "bytes", one(`starling_storage_lag_bytes{instance=~"$instance"}`)},
			{"Blocks waiting for the disk", "Share of the time that blocks waited for the disk.", "percentunit",
				one(`rate(starling_storage_wait_seconds_total{instance=~"$instance"}[$__rate_interval])`)},
			{"Written by flushes", "", "Bps", one(`rate(starling_storage_flush_bytes_total{instance=~"$instance"}[$__rate_interval])`)},
			{"On disk", "Disk space, by zone.", "bytes", []Query{{Expr: `starling_storage_disk_bytes{instance=~"$instance"}`, Legend: node + " {{zone}}"}}},
			{"Free space", "The node stops when its free disk space falls below disk.min_free_bytes.", "bytes",
				one(`starling_storage_disk_free_bytes{instance=~"$instance"}`)},
			{"Write amplification", "Bytes written for each byte stored.", "none", []Query{
				{Expr: `starling_storage_write_amplification{instance=~"$instance"}`, Legend: node + " {{zone}}"}}},
		}},
		{"Cache", []Panel{
			{"Hit rate", "Share of cache lookups that hit, by zone.", "percentunit", []Query{
				{Expr: `rate(starling_storage_cache_hits_total{instance=~"$instance"}[$__rate_interval]) / ` +
					`(rate(starling_storage_cache_hits_total{instance=~"$instance"}[$__rate_interval]) + ` +
					`rate(starling_storage_cache_misses_total[$__rate_interval]))`,
					Legend: node + " {{zone}}"}}},
			{"Memory", "Cache memory and its limit, by zone; the limits shift between the zones.", "bytes", []Query{
				{Expr: `starling_storage_cache_bytes{instance=~"$instance"}`, Legend: node + " {{zone}}"},
				{Expr: `starling_storage_cache_target_bytes{instance=~"$instance"}`, Legend: node + " {{zone}} limit"}}},
			{"Evicted too early", "Misses that a larger share of the cache would have avoided.", "ops", []Query{
				{Expr: `rate(starling_storage_cache_ghost_hits_total{instance=~"$instance"}[$__rate_interval])`, Legend: node + " {{zone}}"}}},
		}},
		{"Serving joiners", []Panel{
			{"Snapshots", "Snapshots served to joining nodes.", "none", one(`starling_statesync_snapshots_pinned{instance=~"$instance"}`)},
			{"Connections", "Inbound transport connections.", "none", one(`starling_transport_connections{instance=~"$instance"}`)},
			{"Requests", "Transport requests, by method and outcome.", "reqps", []Query{
				{Expr: `sum by (method, outcome) (rate(starling_transport_requests_total{instance=~"$instance"}[$__rate_interval]))`,
					Legend: "{{method}} {{outcome}}", Rare: true}}},
			{"Sent", "", "Bps", one(`rate(starling_transport_sent_bytes_total{instance=~"$instance"}[$__rate_interval])`)},
			{"Response time", "", "s", []Query{
				{Expr: `histogram_quantile(0.99, sum by (le, method) (rate(starling_transport_request_seconds_bucket{instance=~"$instance"}[$__rate_interval])))`,
					Legend: "{{method}} p99", Rare: true}}},
			{"Refused connections", "Refused transport connections, by reason.", "ops", []Query{
				{Expr: `sum by (reason) (rate(starling_transport_connections_refused_total{instance=~"$instance"}[$__rate_interval]))`,
					Legend: "{{reason}}", Rare: true}}},
		}},
		{"Joining", []Panel{
			{"Chunks", "Verified chunks and the total.", "none", []Query{
				{Expr: `starling_statesync_join_chunks_done{instance=~"$instance"} > 0`, Legend: node, Rare: true},
				{Expr: `starling_statesync_snapshot_chunks{instance=~"$instance"} > 0`, Legend: node + " of", Rare: true}}},
			{"Speed", "Join rate in verified bytes per second.", "Bps", one(`starling_statesync_join_bytes_per_second{instance=~"$instance"}`)},
			{"Speed by peer", "Rate of each peer, as measured by the joiner.", "Bps", []Query{
				{Expr: `starling_statesync_peer_bytes_per_second{instance=~"$instance"}`, Legend: "{{instance}} from {{peer}}", Rare: true}}},
			{"Requests in flight", "Requests of the join in flight, by peer.", "none", []Query{
				{Expr: `starling_statesync_peer_requests_in_flight{instance=~"$instance"}`, Legend: "{{instance}} from {{peer}}", Rare: true}}},
			{"Wasted", "Bytes of invalid data, duplicates and cancelled responses.", "bytes",
				one(`starling_statesync_join_wasted_bytes{instance=~"$instance"}`)},
			{"Peers banned", "Banned peers, by the subject of their invalid data.", "none", []Query{
				{Expr: `sum by (instance, reason) (starling_statesync_peers_banned_total{instance=~"$instance"})`, Legend: node + " {{reason}}", Rare: true}}},
		}},
		{"Program", []Panel{
			{"Versions", "Number of nodes running each version.", "none", []Query{
				{Expr: `count by (version) (starling_build_info{instance=~"$instance"})`, Legend: "{{version}}"}}},
			{"App version", "App version of the next block: the same on all nodes.", "none", one(`starling_app_version{instance=~"$instance"}`)},
			{"Memory", "Resident memory of the process.", "bytes", one(`process_resident_memory_bytes{instance=~"$instance"}`)},
			{"Processor", "Processor cores in use.", "none", one(`rate(process_cpu_seconds_total{instance=~"$instance"}[$__rate_interval])`)},
		}},
	}
}

// Sizes, in Grafana's grid of 24 columns.
const (
	panelWidth, panelHeight = 6, 7
	columns                 = 24
)

type object = map[string]any

// Dashboard returns the JSON document that Grafana imports.
func Dashboard() ([]byte, error) {
	source := object{"type": "prometheus", "uid": "${datasource}"}
	var panels []object
	y := 0
	for _, row := range Rows() {
		panels = append(panels, object{
			"id": len(panels) + 1, "type": "row", "title": row.Title, "collapsed": false, "panels": []object{},
			"gridPos": object{"x": 0, "y": y, "w": columns, "h": 1},
		})
		y++
		for i, p := range row.Panels {
			var targets []object
			for k, q := range p.Queries {
				targets = append(targets, object{"refId": string(rune('A' + k)), "datasource": source, "expr": q.Expr, "legendFormat": q.Legend})
			}
			panels = append(panels, object{
				"id": len(panels) + 1, "type": "timeseries", "title": p.Title, "description": p.Help, "datasource": source, "targets": targets,
				"fieldConfig": object{"defaults": object{"unit": p.Unit, "custom": object{"fillOpacity": 8, "showPoints": "never"}}, "overrides": []object{}},
				"options":     object{"legend": object{"displayMode": "list", "placement": "bottom"}, "tooltip": object{"mode": "multi", "sort": "desc"}},
				"gridPos":     object{"x": i * panelWidth % columns, "y": y + i*panelWidth/columns*panelHeight, "w": panelWidth, "h": panelHeight},
			})
		}
		y += (len(row.Panels)*panelWidth + columns - 1) / columns * panelHeight
	}
	text, err := json.MarshalIndent(object{
		"title": "Starling", "uid": "starling", "tags": []string{"starling", "cometbft"}, "schemaVersion": 39, "version": 1, "editable": true,
		"timezone": "browser", "refresh": "5s", "time": object{"from": "now-30m", "to": "now"}, "graphTooltip": 1,
		"templating": object{"list": []object{
			{"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
			{"name": "instance", "label": "Node", "type": "query", "datasource": source, "query": `label_values(starling_app_height, instance)`,
				"refresh": 2, "multi": true, "includeAll": true, "allValue": ".*", "current": object{"text": "All", "value": "$__all"}},
		}},
		"panels": panels,
	}, "", "  ")
	return append(text, '\n'), err
}
