// Package e2ebench compares networks: four validators that run starlingd, and four that run a stock
// cometbft with its own kvstore.
//
//	parent (run.go): one network at a time, in turns, each from new homes
//	   │
//	   ├─ ../network   starlingd × 4   or   cometbft × 4, processes on loopback with the same configuration
//	   │      ▲   │
//	   │ transactions, headers and blocks, all over RPC
//	   │      │   ▼
//	   ├─ load.go      as many as the network takes (saturate), then a given rate (pace)
//	   ├─ conn.go      one websocket per validator: broadcast_tx_sync
//	   └─ watch.go     when was each transaction in a block?
//	          │
//	          ▼
//	   Result (result.go) ─▶ table.go · JSON
//
// RunJoiners (joiners.go) measures the blocks of a network while many nodes join at the same time.
// RunSnapshots (snapshots.go) compares networks with and without snapshots: starlingd, and
// bench/iavlnode, which stands in for the opponent of the AVL* paper's Fig. 4, Fig. 5 and Table 2.
// RunNewcomer (newcomer.go) joins both, as in Fig. 3.
//
// All measurements are made from outside: they are what a client sees.
package e2ebench
