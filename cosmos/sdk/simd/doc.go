// Package simd is a small chain of the Cosmos SDK, for tests: the SDK's own modules and commands,
// with an application that serves its states in verified chunks where `simd start --serve` asks for
// it.
//
//	auth · bank · consensus · distribution · genutil · mint · slashing · staking
//	                     │ depinject
//	New: the stock application ──(start --serve)──▶ serve.Creator(New)
//	                     │
//	Command: init, keys, genesis, start, tx bank send, status, comet …
//
// It is not the SDK's simapp: that one is no released module, and so cannot be required. No program
// that we release contains it.
package simd
