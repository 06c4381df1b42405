// Package cosmos only holds tests: the packages of this module bring Starling's verified chunks to
// chains of the Cosmos SDK.
//
//	iavlsync             the formats: a manifest and chunks of IAVL stores, proved by the chain's app hash
//	nodedb               the records of an application's database: reads a state, installs one
//	iavlsync/oracle      compares both with cosmos/iavl v1.3
//	iavlsync/oracle/sdk  compares both with cosmos/iavl v1.2 and the SDK's multi-store
//
// It is a module of its own, as the oracles are, so that neither IAVL nor the SDK becomes part of
// Starling's node. Nothing of Starling imports it.
package cosmos
