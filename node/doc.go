// Package node wires application, storage, state sync and CometBFT into a process that is a member of a network.
//
//	config.toml, app.toml, genesis.json, STARLINGD_…, flags
//	          │ LoadConfig, checks
//	          ▼
//	┌──────── Node ────────────────────────────────────────────────────┐
//	│  CometBFT ── four ABCI connections, no shared lock ──► app       │
//	│   │ blocks, peers,                                     │    │    │
//	│   │ consensus, RPC                                 Store    Snapshots
//	│   │                                                    │    │    │
//	│   │   data/state, data/snapshots ◄─flusher─ stateZone ─┘    │    │
//	│   │    (storage)  ▲      └── read after a restart ──────┐   │    │
//	│   │               └── restoring (Target) ◄──── statesync.Manager │
//	│   │                                                              │
//	│   └─► data/blocks (storage/blocks) ─── sgc: one cache for both   │
//	└──────────────────────────────────────────────────────────────────┘
//
// Start: the tree is rebuilt from data/state, CometBFT replays the blocks that the state zone does not have yet. CometBFT saves
// a block before the application executes it, so the application is never ahead of the block store. Package e2e/byzantine puts
// a lying application between CometBFT and app with WithApp.
package node
