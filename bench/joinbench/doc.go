// Package joinbench measures how long a node takes to fetch the blocks of a chain from one peer:
// with CometBFT's block sync, at its default rate and at one that does not limit it, and over the
// transport (package catchup).
//
//	this process ── makes a chain, block by block, with the application ──► home
//	starlingd (validator) on that home ◄── starlingd (joiner), a new one for each path and round
//	with --profile (profile.go): the same validator ◄── a child of this program as the joiner
package joinbench
