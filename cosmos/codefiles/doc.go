// Package codefiles finds, checks and serves the files in which modules keep code outside the
// database: that of wasm contracts and of light clients.
//
//	state ──Hashes──▶ SHA-256 of each file ──▶ Module.Missing(home) ──▶ Fetch from peers
//	                                                                    └▶ Module.Write
//
// The app hash does not cover these files, but it covers a hash of each in the module's store. So a
// file that has such a hash is proved, whoever has sent it.
package codefiles
