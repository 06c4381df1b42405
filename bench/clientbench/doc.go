// Package clientbench measures what a client of a network sees: its operations compared
// with those of etcd, and what watchers cost a node.
//
//	Run (run.go): one contestant at a time, in turns, each from new homes
//	   ├─ starling.go   starlingd × 3, and the client package in this process
//	   └─ etcd.go       etcd × 3 and its client, processes of bench/etcdstore
//	          │
//	          ▼
//	   Result (result.go) ─▶ table, JSON
//
//	RunLatency (latency.go): starlingd, CometBFT's kvstore (kvstore.go) and etcd, in turns
//	   └─▶ LatencyResult (latencyresult.go) ─▶ table, JSON
//
//	RunTimeline (timeline.go): networks of starlingd, one after the other
//	   └─ syncs.go        syncs of the disk, counted by strace
//
//	RunWatch (watch.go): one node
//	   ├─ changes.go    writes at a fixed rate
//	   ├─ crowd.go      with and without watchers, in turns: missed events? block times?
//	   └─ catchup.go    a watch from 10,000 heights ago
//	          │
//	          ▼
//	   WatchResult (watchresult.go) ─▶ table, JSON
//
// The two stores give different guarantees. etcd's members trust each other: a cluster survives
// members that stop. Starling's validators do not trust each other: a network also survives
// Byzantine validators, and proves its answers. The table shows what this costs, and names no
// winner.
package clientbench
