// Package sdk compares iavlsync with the Cosmos SDK's multi-store (cosmossdk.io/store v1.1) on
// cosmos/iavl v1.2: app hashes of several stores, empty ones and ones that an upgrade adds.
package sdk
