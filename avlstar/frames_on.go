//go:build !race && !msan && !asan && !avlstardebug

package avlstar

// inFrames is false in builds where a tool checks Go's heap.
const inFrames = true
