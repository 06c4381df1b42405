// Package rootmulti is the SDK's multi-store, which mounts Starling's stores beside IAVL's.
//
// It is a copy of package rootmulti of cosmossdk.io/store v1.1.2 (Apache License 2.0), of the
// Cosmos SDK's authors. What is changed: stores of type store.Type are mounted, loaded, committed,
// proved, rolled back and in snapshots as IAVL's are (starling.go, snapshot_starling.go); caches
// are those of our package cachemulti; NewStore takes Options. For IAVL's stores nothing is.
//
// sdk_*_test.go are its tests, of the same version, changed in constructors, in types of stores, in
// the paths of proofs ("/state" is in ours), in limits of time and in what they wait for. All run
// over stores of both types but these: TestMultistoreSnapshot_Checksum is about the bytes of IAVL's
// snapshots; TestMultiStore_Pruning_SameHeightsTwice takes IAVL minutes. Of the SDK's other suites,
// ../sdk_iavl_test.go is that of its package iavl, without TestChangeSets (our stores have no
// change sets) and tree_test.go (which is about IAVL's types); its package snapshots is used as it
// is, and its tests have mocks in place of stores.
package rootmulti
