// Package e2ebench compares networks: four validators of starlingd beside four of a stock cometbft with its own kvstore.
//
//	parent (run.go): one network at a time, in turns, each from new homes
//	   │
//	   ├─ network.go   starlingd × 4   or   cometbft × 4, processes on loopback with one configuration
//	   │      ▲   │
//	   │ transactions, headers and blocks, all by RPC
//	   │      │   ▼
//	   ├─ load.go      as many as it takes (saturate), then a given rate (pace)
//	   ├─ conn.go      one websocket per validator: broadcast_tx_sync
//	   └─ watch.go     when was each transaction in a block?
//	          │
//	          ▼
//	   Result (result.go) ─▶ table.go · goals.go · JSON
//
// Joiners (joiners.go) is another question to the same networks: what becomes of the blocks while many nodes join at once?
//
// It is black-box: what is measured is what a client sees.
package e2ebench
