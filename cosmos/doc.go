// Package cosmos has only tests. The packages of this module bring Starling's verified chunks to
// Cosmos SDK chains.
//
//	iavlsync             the formats: manifest and chunks of IAVL stores, proved by the app hash
//	nodedb               the records of an application's database: reads a state, installs one
//	tables               writes and reads databases of goleveldb and Pebble
//	serve, join          serve such a state, and fetch it, over Starling's transport
//	packed               compresses chunks on their way
//	cmd/starling-iavl    serves a stopped node's home, and creates a new one (docs/how-to/cosmos.md)
//	store                stores of the SDK over Starling's tree, and their multi-store
//	sdkstore             compares all of this with the SDK's multi-store on cosmos/iavl v1.2
//	oracle               compares it with cosmos/iavl v1.3
//	sdk                  SDK applications that serve, join, and run on store
//
// cosmos, oracle and sdk are modules of their own. The node must not link the SDK's databases, and
// iavl v1.3 cannot be in one module with the SDK's v1.2. Only cosmos and bench import packages of
// this module.
package cosmos
