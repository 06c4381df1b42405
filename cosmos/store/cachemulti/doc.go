// Package cachemulti is the SDK's branch of a multi-store, with the limits of Starling's stores.
//
// It is a copy of package cachemulti of cosmossdk.io/store v1.1.2 (Apache License 2.0), of the
// Cosmos SDK's authors. What is changed: caches of Starling's stores refuse what the stores do
// (guarded.go).
package cachemulti
