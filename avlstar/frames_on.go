//go:build !race && !msan && !asan && !avlstardebug

package avlstar

// inFrames is off where a tool watches Go's heap.
const inFrames = true
