// Package db runs the tests of cometbft-db with package blocks. It contains only tests, and has the
// package name that they require.
package db
