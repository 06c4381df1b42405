//go:build race

package scheduler

// The race detector finds nothing in a package without goroutines, and takes ten times as long.
const worlds = 400
