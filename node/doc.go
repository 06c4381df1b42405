// Package node wires application, storage, state sync and CometBFT into a process that is a member
// of a network. What it is told is in package config, all that adapts CometBFT in comet, joining
// over the transport in join, and work on the home of a stopped node in home.
//
//	config.toml, app.toml, genesis.json, STARLINGD_…, flags
//	          │ node/config
//	          ▼
//	┌──────── Node ────────────────────────────────────────────────────┐
//	│  CometBFT ── four ABCI connections, no shared lock ──► app       │
//	│   │ blocks, peers,                                     │    │    │
//	│   │ consensus, RPC                                 Store    Snapshots
//	│   │                                                    │    │    │
//	│   │   data/state, data/snapshots ◄─flusher─ treestore ─┘    │    │
//	│   │    (storage)  ▲      └── read after a restart ──────┐   │    │
//	│   │               └── treestore, as Target ◄── statesync.Manager │
//	│   │                                                              │
//	│   └─► data/blocks (storage/blocks) ─── sgc: one cache for both   │
//	└──────────────────────────────────────────────────────────────────┘
//
// Start: the tree is rebuilt from data/state, CometBFT replays the blocks that the state zone does
// not have yet. CometBFT saves a block before the application executes it, so the application is
// never ahead of the block store. Package e2e/byzantine puts a lying application between CometBFT
// and app with WithApp.
package node
