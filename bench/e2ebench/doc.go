// Package e2ebench compares networks: four validators of starlingd beside four of a stock cometbft
// with its own kvstore.
//
//	parent (run.go): one network at a time, in turns, each from new homes
//	   │
//	   ├─ network.go   starlingd × 4   or   cometbft × 4, processes on loopback with the same configuration
//	   │      ▲   │
//	   │ transactions, headers and blocks, all by RPC
//	   │      │   ▼
//	   ├─ load.go      as many as the network takes (saturate), then a given rate (pace)
//	   ├─ conn.go      one websocket per validator: broadcast_tx_sync
//	   └─ watch.go     when was each transaction in a block?
//	          │
//	          ▼
//	   Result (result.go) ─▶ table.go · goals.go · JSON
//
// Joiners (joiners.go) measures the blocks of the same networks while many nodes join at once.
//
// It is black-box: it measures what a client sees.
package e2ebench
