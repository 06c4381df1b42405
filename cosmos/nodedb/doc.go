// Package nodedb reads and writes the database of an application of the Cosmos SDK: the records of
// its IAVL stores and of its multi-store, as cosmos/iavl v1.2 and v1.3 keep them.
//
//	"s/k:" ‖ store ‖ "/" ‖  s ‖ version:8 ‖ nonce:4  → node; or the root of a version (nonce 1)
//	                        n ‖ hash:32              → node of iavl before v1
//	                        r ‖ version:8            → hash of a root of iavl before v1
//	                        f ‖ key                  → fast index: version ‖ value, of the latest state
//	                        m ‖ "storage_version"    → "1.1.0-" ‖ the version that the fast index is of
//	"s/" ‖ H                                         → names and root hashes of the stores at H
//	"s/latest"                                       → the latest H
//
// It knows neither IAVL nor the SDK: any database that has Get, Iterator and NewBatch will do (DB).
//
//	server   Open ─▶ State.Manifest, State.Answer         what it reads is proved before it is sent
//	joiner   NewInstaller ─▶ Install each chunk ─▶ Finish     resumes after a crash
//
// See docs/spec/iavl.md#records for what is written.
package nodedb
