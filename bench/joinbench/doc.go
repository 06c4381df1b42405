// Package joinbench measures how long a node takes to get the blocks of a chain that it does not
// have, from one peer: by CometBFT's block sync, at its own rate and without one that counts, and
// over the transport (package catchup).
//
//	this process ── makes a chain, block by block, with the application ──► home
//	starlingd (validator) on that home ◄── starlingd (joiner), anew for each way and round
package joinbench
