// Package simd is a small Cosmos SDK chain for tests. It consists of the SDK's own modules and
// commands. With `simd start --serve`, its application serves its states in verified chunks.
//
//	auth · bank · consensus · distribution · genutil · mint · slashing · staking
//	                     │ depinject
//	New: the stock application ──(start --serve)──▶ serve.Creator(New)
//	                     │
//	Command: init, keys, genesis, start, tx bank send, status, comet …
//
// It is not the SDK's simapp, which is not released as a module and so cannot be required. None of
// our released programs contains simd.
package simd
