// Package nodedb reads and writes the database of a Cosmos SDK application: the records of its IAVL
// stores and of its multi-store, in the formats of cosmos/iavl v1.2 and v1.3.
//
//	"s/k:" ‖ store ‖ "/" ‖  s ‖ version:8 ‖ nonce:4  → node; or the root of a version (nonce 1)
//	                        f ‖ key                  → fast index: version ‖ value, of the latest state
//	                        m ‖ "storage_version"    → "1.1.0-" ‖ the version of the fast index
//	"s/" ‖ H                                         → names and root hashes of the stores at H
//	"s/latest"                                       → the latest H
//
// It imports neither IAVL nor the SDK: it works with any database that has Get, Iterator and
// NewBatch (DB).
//
//	server   Open ─▶ State.Manifest, State.Answer             verifies what it reads before it sends it
//	joiner   NewInstaller ─▶ Install each chunk ─▶ Finish     resumes after a crash
//
// See docs/spec/iavl.md#records for what it writes.
package nodedb
