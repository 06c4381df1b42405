// Package clientbench measures what a client of a network sees: its operations beside those of
// etcd, and what watchers cost a node.
//
//	Run (run.go): one contestant at a time, in turns, each from new homes
//	   ├─ starling.go   starlingd × 3 (network.go), and the client package in this process
//	   └─ etcd.go       etcd × 3 and its client, processes of bench/etcdstore
//	          │
//	          ▼
//	   Result (result.go) ─▶ table.go · JSON
//
//	RunWatch (watch.go): one node
//	   ├─ changes.go    writes so many keys a second
//	   ├─ crowd.go      a thousand of one key each and ten of all, or none, in turns: missed? block times?
//	   └─ catchup.go    a watch from 10,000 heights ago
//	          │
//	          ▼
//	   WatchResult (watchresult.go) ─▶ table, JSON
//
// The two stores make different promises. Etcd's members believe each other: it survives members
// that stop. Starling's validators believe nobody: it survives as many that lie, and proves its
// answers. So the table shows what the second promise costs, and no winner.
package clientbench
