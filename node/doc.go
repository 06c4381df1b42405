// Package node connects application, storage, state sync and CometBFT to a process that is a member
// of a network. Its configuration is in package config, the adaptation of CometBFT in comet,
// joining over the transport in join, and work on the home of a stopped node in home.
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
// At the start, the tree is rebuilt from data/state, and CometBFT replays the blocks that the state
// zone is missing. CometBFT saves a block before the application executes it, so the application is
// never ahead of the block store. Package e2e/byzantine uses WithApp to put a misbehaving
// application between CometBFT and app.
package node
