// Package rootmulti is the SDK's multi-store, which mounts Starling's stores beside IAVL's.
//
// It is a copy of package rootmulti of cosmossdk.io/store v1.1.2 (Apache License 2.0), of the
// Cosmos SDK's authors. What is changed: stores of type store.Type are mounted, loaded, committed,
// proved, rolled back and in snapshots as IAVL's are (starling.go, snapshot_starling.go); caches
// are those of our package cachemulti; NewStore takes Options. For IAVL's stores nothing is. The
// original's store.go is store.go, load.go, commit.go, cache.go, query.go and pruning.go here.
//
// sdk_*_test.go are its tests, of the same version, changed in constructors, in types of stores, in
// the paths of proofs ("/state" is in ours), in limits of time and in what they wait for. All run
// over stores of both types. sdk_manager_test.go is manager_test.go of its package snapshots, with
// multi-stores where the original has mocks; ../sdk_iavl_test.go is the suite of its package iavl.
// What cannot apply:
//
//   - TestMultistoreSnapshot_Checksum, over our stores: it is about the bytes of IAVL's nodes.
//     Those of ours are in ../testdata/snapshots.json.
//   - TestMultiStore_Pruning_SameHeightsTwice, over IAVL's: it takes minutes.
//   - store_test.go and chunk_test.go of package snapshots: they have no snapshotter. That package
//     is used as it is.
//   - TestImmutableTreePanics, and all of tree_test.go, of package iavl: about IAVL's types.
//   - TestChangeSets of package iavl: our stores have no change sets.
package rootmulti
