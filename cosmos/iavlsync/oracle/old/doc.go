// Package old makes the home of a node on iavl v0.20, which nodedbtest.OldHome has: the suite of
// nodedbtest continues on it with cosmos/iavl v1, as nodes do that were upgraded.
package old
