// Package evm executes programs with go-ethereum's EVM. Only it and its package abi
// import go-ethereum; the application reaches it through program.Engine.
//
//	program.Call ──► engine.Run ──► vm.EVM ──► state.StateDB (journal, warm records, one per call)
//	                    │                          │ state.Reader
//	program.Result ◄────┴── changes ◄── records ◄──┘──► program.Reader
//
// The rules are those of Ethereum's Osaka fork, for ever: a newer go-ethereum does not change them.
// They differ from Ethereum where a coin or a chain of Ethereum's blocks would be needed:
//
//   - There is no coin: balances, gas price, base fee and blob base fee are 0. A call with a value
//     inside a program fails as it does on Ethereum for a program without coins.
//   - No intrinsic gas: the application sets the price of a transaction's bytes. Unused gas is not
//     part of the result, and there are no refunds (EIP-3529): a refund would return coins, and gas
//     counts work that was done.
//   - NUMBER and TIMESTAMP come from program.Env. BLOCKHASH, PREVRANDAO, COINBASE and BLOBHASH
//     return 0, GASLIMIT returns program.MaxGas.
//   - CHAINID is the first 6 bytes of the SHA-256 of the chain's name: wallets take numbers below
//     2^52.
//   - The precompiled contract of EIP-4844 (address 10) does not exist, and three others cost twice as
//     much: see precompiled.
//   - A nonce counts only deployments, as a transaction's sequence belongs to the application. A call
//     that does not end with program.Done changes nothing, not even a nonce.
//   - A call of an address without code fails, where on Ethereum it succeeds and does nothing.
//
// testdata/vectors.json pins results: a newer go-ethereum must not change a line of it.
//
// With the build tag noevm, New returns nil and the build contains no go-ethereum.
package evm
