// Package cosmos only holds tests: the packages of this module bring Starling's verified chunks to
// chains of the Cosmos SDK.
//
//	iavlsync             the formats: manifest and chunks of IAVL stores, proved by the app hash
//	nodedb               the records of an application's database: reads a state, installs one
//	serve, join          answer from such a state, and fetch it, over Starling's transport
//	cmd/starling-iavl    serves a stopped node's home, and makes a new one (docs/cosmos.md)
//	store                stores of the SDK over Starling's tree, and their multi-store
//	iavlsync/oracle      compares formats and records with cosmos/iavl v1.3
//	iavlsync/oracle/sdk  compares them with cosmos/iavl v1.2 and the SDK's multi-store
//
// It is a module of its own, as serve, join, store, the command and the oracles are, so that
// neither IAVL nor the SDK becomes part of Starling's node. Nothing of Starling imports it.
package cosmos
